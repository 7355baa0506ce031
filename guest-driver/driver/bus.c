// SPDX-License-Identifier: GPL-2.0-only
/*
 * Memory of other PCI functions, which other nodes reach by the adaptor: it makes the accesses on
 * this machine's bus. A window goes with its function, since its addresses may be another's then.
 */
#include <linux/capability.h>
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

/*
 * Finds the memory and keeps its function enabled until ardma_bar_give(). Under
 * pci_lock_rescan_remove(), so that the function does not go meanwhile.
 */
int ardma_bar_take(struct ardma_adaptor *adaptor, struct ardma_bar *bar,
		   struct ardma_export_bar *argument)
{
	struct pci_dev *function;
	int ret;

	if (!capable(CAP_SYS_RAWIO))
		return -EPERM;
	ret = security_locked_down(LOCKDOWN_PCI_ACCESS);
	if (ret)
		return ret;
	if (argument->bar >= PCI_STD_NUM_BARS || argument->function > 0xffff)
		return -EINVAL;
	function = pci_get_domain_bus_and_slot(argument->domain, argument->function >> 8,
					       argument->function & 0xff);
	if (!function)
		return -ENXIO;
	ret = function == adaptor->pdev ? -EINVAL : 0;
	if (!ret)
		ret = ardma_bar_range(function, argument, &bar->address);
	if (ret)
		goto err_put;

	/* A driver of its own may be at the same. */
	device_lock(&function->dev);
	ret = pci_enable_device_mem(function);
	device_unlock(&function->dev);
	if (ret)
		goto err_put;
	bar->function = function;
	return 0;

err_put:
	pci_dev_put(function);
	return ret;
}

void ardma_bar_give(struct ardma_bar *bar)
{
	pci_disable_device(bar->function);
	pci_dev_put(bar->function);
	bar->function = NULL;
}

/* Maps length bytes for DMA. */
int ardma_bar_map(struct ardma_adaptor *adaptor, struct ardma_bar *bar, u64 length)
{
	struct device *dev = &adaptor->pdev->dev;

	bar->bus = dma_map_resource(dev, bar->address, length, DMA_BIDIRECTIONAL, 0);
	if (dma_mapping_error(dev, bar->bus))
		return -ENXIO;
	bar->mapped = length;
	return 0;
}

void ardma_bar_unmap(struct ardma_adaptor *adaptor, struct ardma_bar *bar)
{
	if (bar->mapped)
		dma_unmap_resource(&adaptor->pdev->dev, bar->bus, bar->mapped, DMA_BIDIRECTIONAL, 0);
	bar->mapped = 0;
}

/* A function of the bus is about to go. */
static int ardma_bus_event(struct notifier_block *block, unsigned long event, void *data)
{
	struct ardma_adaptor *adaptor = container_of(block, struct ardma_adaptor, bus_events);
	struct device *dev = data;

	if (event == BUS_NOTIFY_DEL_DEVICE)
		ardma_grants_function_gone(adaptor, to_pci_dev(dev));
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
