// SPDX-License-Identifier: GPL-2.0-only
/*
 * The module, and how an adaptor comes and goes: probe, remove, shutdown, reset, suspend and
 * resume.
 */
#include <linux/idr.h>
#include <linux/interrupt.h>
#include <linux/module.h>

#include "driver.h"

/* Character devices, at most. */
#define ARDMA_MINORS	256

#define ARDMA_BARS \
	(BIT(ARDMA_BAR_REGISTERS) | BIT(ARDMA_BAR_IO) | BIT(ARDMA_BAR_ACCESS) | \
	 BIT(ARDMA_BAR_ASSURANCE))

/* MSI-X vectors: of events, of messages and of queues. */
#define ARDMA_VECTORS	3

static dev_t ardma_first_device;
static DEFINE_IDA(ardma_minors);

static const struct class ardma_class = {
	.name = ARDMA_NAME,
};

/*
 * The last reference: the adaptor is removed and no file is open. Only now may its minor number
 * be used again.
 */
static void ardma_device_release(struct device *dev)
{
	struct ardma_adaptor *adaptor = container_of(dev, struct ardma_adaptor, dev);
	struct ardma_account *account;
	unsigned long uid;

	ardma_failed_forget(adaptor);
	xa_destroy(&adaptor->failed);
	xa_destroy(&adaptor->live_queues);
	xa_for_each(&adaptor->accounts, uid, account)
		kfree(account);
	xa_destroy(&adaptor->accounts);
	ida_destroy(&adaptor->domains);
	ida_free(&ardma_minors, adaptor->minor);
	pci_dev_put(adaptor->pdev);
	kfree(adaptor);
}

static struct ardma_adaptor *ardma_adaptor_create(struct pci_dev *pdev)
{
	struct ardma_adaptor *adaptor;
	int minor;

	adaptor = kzalloc(sizeof(*adaptor), GFP_KERNEL);
	if (!adaptor)
		return ERR_PTR(-ENOMEM);
	minor = ida_alloc_max(&ardma_minors, ARDMA_MINORS - 1, GFP_KERNEL);
	if (minor < 0) {
		kfree(adaptor);
		return ERR_PTR(minor);
	}
	adaptor->minor = minor;
	adaptor->pdev = pci_dev_get(pdev);
	init_rwsem(&adaptor->gate);
	mutex_init(&adaptor->command_lock);
	init_completion(&adaptor->command_done);
	INIT_LIST_HEAD(&adaptor->grants);
	mutex_init(&adaptor->bars_lock);
	INIT_LIST_HEAD(&adaptor->bars);
	xa_init(&adaptor->accounts);
	mutex_init(&adaptor->assurance_lock);
	xa_init(&adaptor->failed);
	mutex_init(&adaptor->inventory_lock);
	mutex_init(&adaptor->files_lock);
	INIT_LIST_HEAD(&adaptor->files);
	spin_lock_init(&adaptor->event_lock);
	init_waitqueue_head(&adaptor->event_wait);
	ardma_messages_create(adaptor);
	ardma_queues_create(adaptor);
	ardma_recovery_create(adaptor);

	device_initialize(&adaptor->dev);
	adaptor->dev.class = &ardma_class;
	adaptor->dev.parent = &pdev->dev;
	adaptor->dev.devt = MKDEV(MAJOR(ardma_first_device), minor);
	adaptor->dev.release = ardma_device_release;
	cdev_init(&adaptor->cdev, &ardma_file_operations);
	adaptor->cdev.owner = THIS_MODULE;
	return adaptor;
}

/* Registers, address map and DMA. Undone by ardma_disable(). */
static int ardma_enable(struct ardma_adaptor *adaptor)
{
	struct pci_dev *pdev = adaptor->pdev;
	int ret;

	ret = pci_enable_device_mem(pdev);
	if (ret)
		return dev_err_probe(&pdev->dev, ret,
				     "cannot be enabled (is there room for its BARs?)\n");
	/*
	 * Exclusive, so that nobody maps an assurance space through sysfs, perhaps write-combined.
	 */
	ret = pci_request_selected_regions_exclusive(pdev, ARDMA_BARS, ARDMA_NAME);
	if (ret) {
		dev_err_probe(&pdev->dev, ret, "its BARs are in use\n");
		goto err_disable;
	}
	adaptor->registers = pci_iomap(pdev, ARDMA_BAR_REGISTERS, ARDMA_REGISTERS_SIZE);
	if (!adaptor->registers ||
	    pci_resource_len(pdev, ARDMA_BAR_REGISTERS) < ARDMA_REGISTERS_SIZE) {
		ret = dev_err_probe(&pdev->dev, -ENODEV, "cannot map the registers in BAR %d\n",
				    ARDMA_BAR_REGISTERS);
		goto err_unmap;
	}
	ret = ardma_identify(adaptor);
	if (ret)
		goto err_unmap;

	ret = dma_set_mask_and_coherent(&pdev->dev, DMA_BIT_MASK(64));
	if (ret)
		ret = dma_set_mask_and_coherent(&pdev->dev, DMA_BIT_MASK(32));
	if (ret) {
		dev_err_probe(&pdev->dev, ret, "no usable DMA addressing\n");
		goto err_unmap;
	}
	dma_set_max_seg_size(&pdev->dev, UINT_MAX);

	/*
	 * A kernel before this one may have left windows; they go before the adaptor may use DMA,
	 * which ardma_start() allows.
	 */
	down_write(&adaptor->gate);
	if (!ardma_reset_function(adaptor))
		ret = dev_err_probe(&pdev->dev, -EIO, "a reset is not confirmed\n");
	up_write(&adaptor->gate);
	if (ret)
		goto err_unmap;
	return 0;

err_unmap:
	if (adaptor->registers)
		pci_iounmap(pdev, adaptor->registers);
	pci_release_selected_regions(pdev, ARDMA_BARS);
err_disable:
	pci_disable_device(pdev);
	return ret;
}

static void ardma_disable(struct ardma_adaptor *adaptor)
{
	struct pci_dev *pdev = adaptor->pdev;

	pci_iounmap(pdev, adaptor->registers);
	pci_release_selected_regions(pdev, ARDMA_BARS);
	pci_disable_device(pdev);
	kfree(adaptor->config);
	adaptor->config = NULL;
}

static int ardma_interrupt_create(struct ardma_adaptor *adaptor)
{
	struct pci_dev *pdev = adaptor->pdev;
	int ret;

	ret = pci_alloc_irq_vectors(pdev, 1, ARDMA_VECTORS, PCI_IRQ_MSIX);
	if (ret < 0)
		return dev_err_probe(&pdev->dev, ret, "no MSI-X vector\n");
	adaptor->message_vector = ret > ARDMA_VECTOR_MESSAGES ? ARDMA_VECTOR_MESSAGES :
								ARDMA_VECTOR_EVENTS;
	adaptor->queue_vector = ret > ARDMA_VECTOR_QUEUES ? ARDMA_VECTOR_QUEUES :
							    ARDMA_VECTOR_EVENTS;
	adaptor->irq = pci_irq_vector(pdev, ARDMA_VECTOR_EVENTS);
	ret = request_irq(adaptor->irq, ardma_interrupt, 0, dev_name(&adaptor->dev), adaptor);
	if (ret) {
		dev_err_probe(&pdev->dev, ret, "cannot use interrupt %d\n", adaptor->irq);
		goto err_vectors;
	}
	if (adaptor->message_vector == ARDMA_VECTOR_EVENTS)
		return 0;
	adaptor->message_irq = pci_irq_vector(pdev, ARDMA_VECTOR_MESSAGES);
	snprintf(adaptor->message_irq_name, sizeof(adaptor->message_irq_name), "%s-messages",
		 dev_name(&adaptor->dev));
	ret = request_irq(adaptor->message_irq, ardma_message_interrupt, 0,
			  adaptor->message_irq_name, adaptor);
	if (ret) {
		dev_err_probe(&pdev->dev, ret, "cannot use interrupt %d\n", adaptor->message_irq);
		goto err_events;
	}
	if (adaptor->queue_vector == ARDMA_VECTOR_EVENTS)
		return 0;
	adaptor->queue_irq = pci_irq_vector(pdev, ARDMA_VECTOR_QUEUES);
	snprintf(adaptor->queue_irq_name, sizeof(adaptor->queue_irq_name), "%s-queues",
		 dev_name(&adaptor->dev));
	ret = request_irq(adaptor->queue_irq, ardma_queue_interrupt, 0, adaptor->queue_irq_name,
			  adaptor);
	if (ret) {
		dev_err_probe(&pdev->dev, ret, "cannot use interrupt %d\n", adaptor->queue_irq);
		goto err_messages;
	}
	return 0;

err_messages:
	free_irq(adaptor->message_irq, adaptor);
err_events:
	free_irq(adaptor->irq, adaptor);
err_vectors:
	pci_free_irq_vectors(pdev);
	return ret;
}

static void ardma_interrupt_destroy(struct ardma_adaptor *adaptor)
{
	if (adaptor->queue_irq)
		free_irq(adaptor->queue_irq, adaptor);
	if (adaptor->message_irq)
		free_irq(adaptor->message_irq, adaptor);
	free_irq(adaptor->irq, adaptor);
	cancel_work_sync(&adaptor->message_work);
	cancel_work_sync(&adaptor->queue_work);
	cancel_delayed_work_sync(&adaptor->settle_work);
	pci_free_irq_vectors(adaptor->pdev);
}

/*
 * Has the adaptor forget everything, and other nodes see that what they had here is gone. Messages
 * that came before are in their rings. Where it does not confirm that, it may at least use no DMA.
 */
static void ardma_quiesce(struct ardma_adaptor *adaptor)
{
	if (!ardma_verify(adaptor))
		ardma_messages_withdraw(adaptor);
	if (!ardma_reset_function(adaptor)) {
		dev_err(&adaptor->pdev->dev, "a reset is not confirmed\n");
		WRITE_ONCE(adaptor->health, ARDMA_SILENT);
		pci_clear_master(adaptor->pdev);
	}
}

/*
 * Ends all use of the adaptor: from here on every call fails, no mapping reaches a BAR, and the
 * adaptor reaches no memory of this kernel, or that memory is never used again.
 */
static void ardma_stop(struct ardma_adaptor *adaptor)
{
	down_write(&adaptor->gate);
	if (!adaptor->gone) {
		WRITE_ONCE(adaptor->gone, true);
		ardma_zap_mappings(adaptor);
		ardma_quiesce(adaptor);
		ardma_grants_forget(adaptor);
		ardma_queues_forget(adaptor);
		ardma_registrations_forget(adaptor);
		ardma_messages_lost(adaptor);
	}
	up_write(&adaptor->gate);
	wake_up_all(&adaptor->event_wait);
}

static int ardma_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct ardma_adaptor *adaptor;
	int ret;

	adaptor = ardma_adaptor_create(pdev);
	if (IS_ERR(adaptor))
		return PTR_ERR(adaptor);
	ret = dev_set_name(&adaptor->dev, "ardma%d", adaptor->minor);
	if (ret)
		goto err_put;
	ret = ardma_enable(adaptor);
	if (ret)
		goto err_put;
	ret = ardma_mailbox_create(adaptor);
	if (ret)
		goto err_disable;
	ret = ardma_interrupt_create(adaptor);
	if (ret)
		goto err_mailbox;

	down_write(&adaptor->gate);
	ret = ardma_start(adaptor);
	up_write(&adaptor->gate);
	if (ret)
		goto err_interrupt;
	pci_set_drvdata(pdev, adaptor);
	ardma_config_keep(adaptor);

	ret = ardma_bus_watch(adaptor);
	if (ret)
		goto err_stop;
	ret = cdev_device_add(&adaptor->cdev, &adaptor->dev);
	if (ret)
		goto err_unwatch;
	dev_info(&pdev->dev, "%s: node %u, %u windows of 0x%llx bytes\n", dev_name(&adaptor->dev),
		 adaptor->node, adaptor->node_count, adaptor->window_size);
	return 0;

err_unwatch:
	ardma_bus_unwatch(adaptor);
err_stop:
	pci_set_drvdata(pdev, NULL);
	ardma_stop(adaptor);
err_interrupt:
	ardma_interrupt_destroy(adaptor);
err_mailbox:
	ardma_mailbox_destroy(adaptor);
err_disable:
	ardma_disable(adaptor);
err_put:
	put_device(&adaptor->dev);
	return ret;
}

/* Files may stay open: they keep the adaptor's structure, but nothing of the hardware. */
static void ardma_remove(struct pci_dev *pdev)
{
	struct ardma_adaptor *adaptor = pci_get_drvdata(pdev);

	cdev_device_del(&adaptor->cdev, &adaptor->dev);
	ardma_bus_unwatch(adaptor);
	ardma_stop(adaptor);
	ardma_interrupt_destroy(adaptor);
	ardma_mailbox_destroy(adaptor);
	ardma_disable(adaptor);
	put_device(&adaptor->dev);
}

/* The next kernel, if any, must find an adaptor that leaves its memory alone. */
static void ardma_shutdown(struct pci_dev *pdev)
{
	ardma_stop(pci_get_drvdata(pdev));
}

/* Closes the gate until ardma_reset_done(). Both run in one thread, under the PCI device's lock. */
static void ardma_reset_prepare(struct pci_dev *pdev)
{
	struct ardma_adaptor *adaptor = pci_get_drvdata(pdev);

	down_write(&adaptor->gate);
	ardma_zap_mappings(adaptor);
	disable_irq(adaptor->irq);
	/* What is saved now is what the function has after the reset. */
	ardma_config_restore(adaptor);
}

static void ardma_reset_done(struct pci_dev *pdev)
{
	struct ardma_adaptor *adaptor = pci_get_drvdata(pdev);

	enable_irq(adaptor->irq);
	if (!adaptor->gone)
		ardma_start(adaptor);
	/* Before any access is possible: who has made one since can know that there was a reset. */
	ardma_announce(adaptor, ARDMA_EVENT_RESET);
	up_write(&adaptor->gate);
}

static const struct pci_error_handlers ardma_error_handlers = {
	.reset_prepare = ardma_reset_prepare,
	.reset_done = ardma_reset_done,
};

/*
 * Nothing may land in memory that is being saved or that sleeps: the windows go, and their owners
 * are told. An adaptor that does not confirm it keeps nobody awake: its memory stays pinned.
 */
static int ardma_suspend(struct device *dev)
{
	struct ardma_adaptor *adaptor = dev_get_drvdata(dev);

	down_write(&adaptor->gate);
	if (!adaptor->gone)
		ardma_quiesce(adaptor);
	up_write(&adaptor->gate);
	ardma_announce(adaptor, ARDMA_EVENT_RESET);
	return 0;
}

static int ardma_resume(struct device *dev)
{
	struct ardma_adaptor *adaptor = dev_get_drvdata(dev);

	down_write(&adaptor->gate);
	if (!adaptor->gone)
		ardma_start(adaptor);
	up_write(&adaptor->gate);
	return 0;
}

static DEFINE_SIMPLE_DEV_PM_OPS(ardma_pm_operations, ardma_suspend, ardma_resume);

static const struct pci_device_id ardma_ids[] = {
	{ PCI_DEVICE(ARDMA_VENDOR_ID, ARDMA_DEVICE_ID) },
	{ }
};
MODULE_DEVICE_TABLE(pci, ardma_ids);

static struct pci_driver ardma_driver = {
	.name = ARDMA_NAME,
	.id_table = ardma_ids,
	.probe = ardma_probe,
	.remove = ardma_remove,
	.shutdown = ardma_shutdown,
	.err_handler = &ardma_error_handlers,
	.driver.pm = pm_sleep_ptr(&ardma_pm_operations),
};

static int __init ardma_init(void)
{
	int ret;

	ret = class_register(&ardma_class);
	if (ret)
		return ret;
	ret = alloc_chrdev_region(&ardma_first_device, 0, ARDMA_MINORS, ARDMA_NAME);
	if (ret)
		goto err_class;
	ret = pci_register_driver(&ardma_driver);
	if (ret)
		goto err_region;
	return 0;

err_region:
	unregister_chrdev_region(ardma_first_device, ARDMA_MINORS);
err_class:
	class_unregister(&ardma_class);
	return ret;
}

static void __exit ardma_exit(void)
{
	pci_unregister_driver(&ardma_driver);
	unregister_chrdev_region(ardma_first_device, ARDMA_MINORS);
	class_unregister(&ardma_class);
	ida_destroy(&ardma_minors);
}

module_init(ardma_init);
module_exit(ardma_exit);

MODULE_DESCRIPTION("Network adaptor for assured remote memory access");
MODULE_LICENSE("GPL");
