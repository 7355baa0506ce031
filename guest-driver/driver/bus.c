// SPDX-License-Identifier: GPL-2.0-only
/*
 * Memory of other PCI functions, which other nodes reach by the adaptor: it makes the accesses on
 * this machine's bus. A window goes with its function, since its addresses may be another's then.
 */
#include <linux/capability.h>
#include <linux/pm_runtime.h>
#include <linux/security.h>

#include "driver.h"

/* Where the memory is that is asked for; the length is filled in where it is 0. */
static int ardma_bar_range(struct pci_dev *function, struct ardma_export_bar *argument,
			   phys_addr_t *address)
{
	unsigned long flags = pci_resource_flags(function, argument->bar);
	u64 size = pci_resource_len(function, argument->bar);

	if (!(flags & IORESOURCE_MEM) || (flags & IORESOURCE_UNSET) || argument->start >= size)
		return -ENXIO;
	if (!argument->length)
		argument->length = size - argument->start;
	if (argument->length > size - argument->start)
		return -ENXIO;
	*address = pci_resource_start(function, argument->bar) + argument->start;
	/* What shares a page with it would be reached as well. */
	return IS_ALIGNED(*address | argument->length, ARDMA_MEMORY_GRAIN) ? 0 : -EINVAL;
}

/* Finds the function and watches it, until ardma_bar_give(). */
static int ardma_bar_find(struct ardma_adaptor *adaptor, struct ardma_bar *bar,
			  struct ardma_export_bar *argument)
{
	struct pci_dev *function;
	int ret;

	/* So that it is not removed between the look-up and the list, in which its removal looks. */
	pci_lock_rescan_remove();
	function = pci_get_domain_bus_and_slot(argument->domain, argument->function >> 8,
					       argument->function & 0xff);
	if (!function)
		ret = -ENXIO;
	else if (function == adaptor->pdev)
		ret = -EINVAL;
	else
		ret = ardma_bar_range(function, argument, &bar->address);
	if (!ret) {
		bar->function = function;
		mutex_lock(&adaptor->bars_lock);
		list_add(&bar->entry, &adaptor->bars);
		mutex_unlock(&adaptor->bars_lock);
	}
	pci_unlock_rescan_remove();
	if (ret)
		pci_dev_put(function);
	return ret;
}

/*
 * Has the function answer at its BARs. Its enable count stays its driver's: where that goes, bus
 * master goes with it, and the decoding of memory stays.
 */
static int ardma_bar_enable(struct pci_dev *function)
{
	/* A driver of its own may be at the same. */
	int ret = device_lock_interruptible(&function->dev);

	if (ret)
		return ret;
	ret = pci_enable_device_mem(function);
	if (!ret)
		pci_disable_device(function);
	device_unlock(&function->dev);
	return ret;
}

/* Finds the memory and keeps its function awake and answering until ardma_bar_give(). */
int ardma_bar_take(struct ardma_adaptor *adaptor, struct ardma_bar *bar,
		   struct ardma_export_bar *argument)
{
	int ret;

	if (!capable(CAP_SYS_RAWIO))
		return -EPERM;
	ret = security_locked_down(LOCKDOWN_PCI_ACCESS);
	if (ret)
		return ret;
	if (argument->bar >= PCI_STD_NUM_BARS || argument->function > 0xffff)
		return -EINVAL;
	ret = ardma_bar_find(adaptor, bar, argument);
	if (ret)
		return ret;
	/* Counts also where it fails. */
	ret = pm_runtime_get_sync(&bar->function->dev);
	if (ret >= 0)
		ret = ardma_bar_enable(bar->function);
	if (ret)
		ardma_bar_give(adaptor, bar);
	return ret;
}

void ardma_bar_give(struct ardma_adaptor *adaptor, struct ardma_bar *bar)
{
	mutex_lock(&adaptor->bars_lock);
	list_del(&bar->entry);
	mutex_unlock(&adaptor->bars_lock);
	pm_runtime_put(&bar->function->dev);
	pci_dev_put(bar->function);
	bar->function = NULL;
}

/*
 * Whether its removal has begun. Under command_lock: one that begins later finds the window in the
 * list of grants.
 */
bool ardma_bar_going(struct ardma_adaptor *adaptor, struct ardma_bar *bar)
{
	bool going;

	lockdep_assert_held(&adaptor->command_lock);

	mutex_lock(&adaptor->bars_lock);
	going = bar->going;
	mutex_unlock(&adaptor->bars_lock);
	return going;
}

/* Maps length bytes for DMA. There is nothing to synchronise, however often it is mapped. */
int ardma_bar_map(struct ardma_adaptor *adaptor, struct ardma_bar *bar, u64 length)
{
	struct device *dev = &adaptor->pdev->dev;

	bar->bus = dma_map_resource(dev, bar->address, length, DMA_BIDIRECTIONAL,
				    DMA_ATTR_SKIP_CPU_SYNC);
	if (dma_mapping_error(dev, bar->bus))
		return -ENXIO;
	bar->mapped = length;
	return 0;
}

void ardma_bar_unmap(struct ardma_adaptor *adaptor, struct ardma_bar *bar)
{
	if (bar->mapped)
		dma_unmap_resource(&adaptor->pdev->dev, bar->bus, bar->mapped, DMA_BIDIRECTIONAL,
				   DMA_ATTR_SKIP_CPU_SYNC);
	bar->mapped = 0;
}

/* A function of the bus is about to go. */
static int ardma_bus_event(struct notifier_block *block, unsigned long event, void *data)
{
	struct ardma_adaptor *adaptor = container_of(block, struct ardma_adaptor, bus_events);
	struct pci_dev *function = to_pci_dev((struct device *)data);
	struct ardma_bar *bar;
	bool known = false;

	if (event != BUS_NOTIFY_DEL_DEVICE)
		return NOTIFY_DONE;
	mutex_lock(&adaptor->bars_lock);
	list_for_each_entry(bar, &adaptor->bars, entry)
		if (bar->function == function)
			known = bar->going = true;
	mutex_unlock(&adaptor->bars_lock);
	if (known) {
		/* An answer that is missing must not keep the windows. */
		ardma_settle(adaptor);
		ardma_grants_function_gone(adaptor, function);
	}
	return NOTIFY_DONE;
}

int ardma_bus_watch(struct ardma_adaptor *adaptor)
{
	adaptor->bus_events.notifier_call = ardma_bus_event;
	return bus_register_notifier(&pci_bus_type, &adaptor->bus_events);
}

/* Not under the gate, which a notification that is under way may wait for. */
void ardma_bus_unwatch(struct ardma_adaptor *adaptor)
{
	bus_unregister_notifier(&pci_bus_type, &adaptor->bus_events);
}
