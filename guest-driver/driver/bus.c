// SPDX-License-Identifier: GPL-2.0-only
/*
 * Memory of other PCI functions, which other nodes reach by the adaptor: it makes the accesses on
 * this guest's bus. A window goes with its function, since its addresses may be another's then.
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

	if (!(flags & IORESOURCE_MEM) || (flags & IORESOURCE_UNSET) || !size)
		return -ENXIO;
	if (argument->start >= size)
		return -ENXIO;
	if (!argument->length)
		argument->length = size - argument->start;
	if (argument->length > size - argument->start)
		return -ENXIO;
	*address = pci_resource_start(function, argument->bar) + argument->start;
	/* What shares a page with it would be reached as well. */
	if (!IS_ALIGNED(*address | argument->length, ARDMA_MEMORY_GRAIN))
		return -EINVAL;
	return 0;
}

/*
 * Finds the memory and makes it reachable, until ardma_bar_give(). Under pci_lock_rescan_remove(),
 * so that the function does not go meanwhile.
 */
int ardma_bar_take(struct ardma_adaptor *adaptor, struct ardma_export_bar *argument,
		   struct ardma_bar *bar)
{
	struct device *dev = &adaptor->pdev->dev;
	struct pci_dev *function;
	phys_addr_t address;
	int ret;

	if (!capable(CAP_SYS_RAWIO))
		return -EPERM;
	ret = security_locked_down(LOCKDOWN_PCI_ACCESS);
	if (ret)
		return ret;
	if (argument->bar >= PCI_STD_NUM_BARS || argument->bus > 0xff || argument->devfn > 0xff)
		return -EINVAL;
	function = pci_get_domain_bus_and_slot(argument->domain, argument->bus, argument->devfn);
	if (!function)
		return -ENXIO;
	if (function == adaptor->pdev) {
		ret = -EINVAL;
		goto err_put;
	}
	ret = ardma_bar_range(function, argument, &address);
	if (ret)
		goto err_put;

	/* A driver of its own may be at the same. */
	device_lock(&function->dev);
	ret = pci_enable_device_mem(function);
	device_unlock(&function->dev);
	if (ret)
		goto err_put;
	bar->bus = dma_map_resource(dev, address, argument->length, DMA_BIDIRECTIONAL, 0);
	if (dma_mapping_error(dev, bar->bus)) {
		ret = -ENXIO;
		goto err_disable;
	}
	bar->function = function;
	bar->length = argument->length;
	return 0;

err_disable:
	pci_disable_device(function);
err_put:
	pci_dev_put(function);
	return ret;
}

void ardma_bar_give(struct ardma_adaptor *adaptor, struct ardma_bar *bar)
{
	dma_unmap_resource(&adaptor->pdev->dev, bar->bus, bar->length, DMA_BIDIRECTIONAL, 0);
	pci_disable_device(bar->function);
	pci_dev_put(bar->function);
	bar->function = NULL;
}

/* A function of the bus is about to go. */
static int ardma_bus_event(struct notifier_block *block, unsigned long event, void *data)
{
	struct ardma_adaptor *adaptor = container_of(block, struct ardma_adaptor, bus_events);

	if (event == BUS_NOTIFY_DEL_DEVICE)
		ardma_grants_function_gone(adaptor, to_pci_dev(data));
	return NOTIFY_DONE;
}

int ardma_bus_watch(struct ardma_adaptor *adaptor)
{
	adaptor->bus_events.notifier_call = ardma_bus_event;
	return bus_register_notifier(&pci_bus_type, &adaptor->bus_events);
}

void ardma_bus_unwatch(struct ardma_adaptor *adaptor)
{
	bus_unregister_notifier(&pci_bus_type, &adaptor->bus_events);
}
