// SPDX-License-Identifier: GPL-2.0-only
/*
 * The calls of the uapi header: arguments are copied in and out here, outside the gate.
 */
#include <linux/capability.h>
#include <linux/nospec.h>
#include <linux/uaccess.h>

#include "driver.h"

union ardma_argument {
	struct ardma_info info;
	struct ardma_node node;
	struct ardma_export export;
	struct ardma_export_bar export_bar;
	struct ardma_unexport unexport;
	struct ardma_window window;
	struct ardma_overflow_ack overflow_ack;
	struct ardma_events events;
	struct ardma_range range;
	struct ardma_failed failed;
	struct ardma_spaces spaces;
	struct ardma_listen listen;
	struct ardma_register reg;
	struct ardma_deregister deregister;
	struct ardma_create_queue create_queue;
	struct ardma_destroy_queue destroy_queue;
	struct ardma_export_key export_key;
	struct ardma_inventory inventory;
};

static int ardma_call_info(struct ardma_file *file, union ardma_argument *argument)
{
	struct ardma_adaptor *adaptor = file->adaptor;
	struct ardma_info *info = &argument->info;
	int ret;

	ret = ardma_enter(adaptor);
	if (ret)
		return ret;
	info->abi_version = ARDMA_ABI_VERSION;
	info->device_version = adaptor->version;
	info->status = ardma_read32(adaptor, ARDMA_REG_STATUS);
	info->memory = READ_ONCE(adaptor->memory);
	info->node = adaptor->node;
	info->node_count = adaptor->node_count;
	info->window_bits = adaptor->window_bits;
	info->bus_bits = adaptor->bus_bits;
	info->block_bits = adaptor->block_bits;
	info->error_count = ardma_read32(adaptor, ARDMA_REG_ERROR_COUNT);
	info->deadline_us = ardma_read32(adaptor, ARDMA_REG_DEADLINE);
	info->lease_us = ardma_read32(adaptor, ARDMA_REG_LEASE);
	info->window_size = adaptor->window_size;
	info->io_window_size = 1ULL << ARDMA_IO_WINDOW_BITS;
	info->incarnation = ardma_read64(adaptor, ARDMA_REG_INCARNATION);
	info->stores = ardma_read64(adaptor, ARDMA_REG_STORES);
	info->loads = ardma_read64(adaptor, ARDMA_REG_LOADS);
	info->checks = ardma_read64(adaptor, ARDMA_REG_CHECKS);
	info->errors = ardma_read64(adaptor, ARDMA_REG_ERRORS);
	info->served_writes = ardma_read64(adaptor, ARDMA_REG_SERVED_WRITES);
	info->served_reads = ardma_read64(adaptor, ARDMA_REG_SERVED_READS);
	info->refused = ardma_read64(adaptor, ARDMA_REG_REFUSED);
	info->messages_received = ardma_read64(adaptor, ARDMA_REG_MESSAGES_RECEIVED);
	info->message_overflows = ardma_read32(adaptor, ARDMA_REG_MESSAGE_OVERFLOWS);
	info->session = adaptor->session;
	/* Last, as what was read before is worth nothing where this is not right. */
	ret = ardma_verify(adaptor);
	ardma_leave(adaptor);

	spin_lock_irq(&adaptor->event_lock);
	memcpy(info->event_counts, adaptor->event_counts, sizeof(info->event_counts));
	spin_unlock_irq(&adaptor->event_lock);
	return ret;
}

static int ardma_call_node(struct ardma_file *file, union ardma_argument *argument)
{
	struct ardma_adaptor *adaptor = file->adaptor;
	struct ardma_node *node = &argument->node;
	u32 entry;
	int ret;

	if (node->node >= ARDMA_NODE_ENTRIES || node->reserved)
		return -EINVAL;
	ret = ardma_enter(adaptor);
	if (ret)
		return ret;
	entry = ARDMA_NODE_TABLE + node->node * ARDMA_NODE_ENTRY_SIZE;
	node->state = ardma_read32(adaptor, entry + ARDMA_NODE_STATE);
	node->link_changes = ardma_read32(adaptor, entry + ARDMA_NODE_LINK_CHANGES);
	node->incarnation = ardma_read64(adaptor, entry + ARDMA_NODE_INCARNATION);
	ret = ardma_verify(adaptor);
	ardma_leave(adaptor);
	return ret;
}

static int ardma_call_export(struct ardma_file *file, union ardma_argument *argument)
{
	return ardma_export(file, &argument->export);
}

static int ardma_call_export_bar(struct ardma_file *file, union ardma_argument *argument)
{
	return ardma_export_bar(file, &argument->export_bar);
}

static int ardma_call_unexport(struct ardma_file *file, union ardma_argument *argument)
{
	if (argument->unexport.reserved)
		return -EINVAL;
	return ardma_unexport(file, argument->unexport.space, argument->unexport.offset);
}

static int ardma_call_window(struct ardma_file *file, union ardma_argument *argument)
{
	return ardma_window_info(file, &argument->window);
}

static int ardma_call_overflow_ack(struct ardma_file *file, union ardma_argument *argument)
{
	struct ardma_adaptor *adaptor = file->adaptor;
	int ret;

	if (argument->overflow_ack.node >= ARDMA_NODE_ENTRIES || argument->overflow_ack.reserved)
		return -EINVAL;
	ret = ardma_enter(adaptor);
	if (ret)
		return ret;
	/* Before any check can miss what the overflow would have told. */
	ardma_announce(adaptor, ARDMA_EVENT_ACK);
	ardma_write32(adaptor, ARDMA_REG_OVERFLOW_ACK, argument->overflow_ack.node);
	ret = ardma_verify(adaptor);
	ardma_leave(adaptor);
	return ret;
}

static int ardma_call_events(struct ardma_file *file, union ardma_argument *argument)
{
	if (READ_ONCE(file->adaptor->gone))
		return -ENODEV;
	argument->events.events = ardma_pending_events(file, true);
	return 0;
}

/* Comes back through the driver's reset callbacks, which take the gate. */
static int ardma_call_reset(struct ardma_file *file, union ardma_argument *argument)
{
	struct ardma_adaptor *adaptor = file->adaptor;
	int ret = -ENODEV;

	if (!capable(CAP_SYS_ADMIN))
		return -EPERM;
	/* Removal runs under this lock too: the function is ours for as long as we hold it. */
	pci_dev_lock(adaptor->pdev);
	/* The kernel would wait for a function that is not there, for a minute. */
	if (!adaptor->gone)
		ret = pci_device_is_present(adaptor->pdev) ?
			      pci_reset_function_locked(adaptor->pdev) :
			      -EIO;
	if (!ret)
		ret = ardma_health_errno(adaptor);
	pci_dev_unlock(adaptor->pdev);
	return ret == -ENOTTY ? -EOPNOTSUPP : ret;
}

static int ardma_call_range(struct ardma_file *file, union ardma_argument *argument)
{
	return ardma_range(file->adaptor, &argument->range);
}

static int ardma_call_failed(struct ardma_file *file, union ardma_argument *argument)
{
	return ardma_failed(file, &argument->failed);
}

static int ardma_call_spaces(struct ardma_file *file, union ardma_argument *argument)
{
	return ardma_spaces(file->adaptor, &argument->spaces);
}

static int ardma_call_listen(struct ardma_file *file, union ardma_argument *argument)
{
	return ardma_listen(file, &argument->listen);
}

static int ardma_call_register(struct ardma_file *file, union ardma_argument *argument)
{
	return ardma_register(file, &argument->reg);
}

static int ardma_call_deregister(struct ardma_file *file, union ardma_argument *argument)
{
	if (argument->deregister.reserved)
		return -EINVAL;
	return ardma_deregister(file, argument->deregister.key);
}

static int ardma_call_create_queue(struct ardma_file *file, union ardma_argument *argument)
{
	return ardma_create_queue(file, &argument->create_queue);
}

static int ardma_call_destroy_queue(struct ardma_file *file, union ardma_argument *argument)
{
	return ardma_destroy_queue(file, argument->destroy_queue.doorbell);
}

static int ardma_call_export_key(struct ardma_file *file, union ardma_argument *argument)
{
	return ardma_export_key(file, &argument->export_key);
}

static int ardma_call_inventory(struct ardma_file *file, union ardma_argument *argument)
{
	return ardma_inventory(file->adaptor, &argument->inventory);
}

/* What a call has made, and its program does not get to know of. */
static void ardma_take_back(struct ardma_file *file, unsigned int number,
			    union ardma_argument *argument)
{
	switch (number) {
	case ARDMA_IOC_EXPORT:
		ardma_unexport(file, argument->export.space, argument->export.offset);
		break;
	case ARDMA_IOC_EXPORT_BAR:
		ardma_unexport(file, argument->export_bar.space, argument->export_bar.offset);
		break;
	case ARDMA_IOC_EXPORT_KEY:
		ardma_unexport(file, ARDMA_SPACE_MEMORY, argument->export_key.offset);
		break;
	case ARDMA_IOC_REGISTER:
		ardma_deregister(file, argument->reg.key);
		break;
	case ARDMA_IOC_CREATE_QUEUE:
		ardma_destroy_queue(file, argument->create_queue.doorbell);
		break;
	}
}

/* Makes or changes something: not for a file that is open for reading only. */
#define ARDMA_CALL_WRITES	BIT(0)
/* Makes sense of an adaptor that is not the one it was. */
#define ARDMA_CALL_STALE	BIT(1)

#define ARDMA_CALL(NAME, run, flags) \
	[_IOC_NR(ARDMA_IOC_##NAME)] = { ARDMA_IOC_##NAME, flags, run }

/* Indexed by number; there are gaps. */
static const struct ardma_call {
	unsigned int number;
	unsigned int flags;
	int (*run)(struct ardma_file *file, union ardma_argument *argument);
} ardma_calls[] = {
	ARDMA_CALL(INFO, ardma_call_info, 0),
	ARDMA_CALL(NODE, ardma_call_node, 0),
	ARDMA_CALL(EXPORT, ardma_call_export, ARDMA_CALL_WRITES),
	ARDMA_CALL(UNEXPORT, ardma_call_unexport, ARDMA_CALL_WRITES),
	ARDMA_CALL(WINDOW, ardma_call_window, ARDMA_CALL_STALE),
	ARDMA_CALL(OVERFLOW_ACK, ardma_call_overflow_ack, ARDMA_CALL_WRITES),
	ARDMA_CALL(EVENTS, ardma_call_events, ARDMA_CALL_STALE),
	ARDMA_CALL(RESET, ardma_call_reset, ARDMA_CALL_WRITES | ARDMA_CALL_STALE),
	ARDMA_CALL(EXPORT_BAR, ardma_call_export_bar, ARDMA_CALL_WRITES),
	ARDMA_CALL(INVENTORY, ardma_call_inventory, 0),
	ARDMA_CALL(LISTEN, ardma_call_listen, ARDMA_CALL_WRITES),
	ARDMA_CALL(RANGE, ardma_call_range, 0),
	ARDMA_CALL(FAILED, ardma_call_failed, 0),
	ARDMA_CALL(SPACES, ardma_call_spaces, 0),
	ARDMA_CALL(REGISTER, ardma_call_register, ARDMA_CALL_WRITES),
	ARDMA_CALL(DEREGISTER, ardma_call_deregister, ARDMA_CALL_WRITES),
	ARDMA_CALL(CREATE_QUEUE, ardma_call_create_queue, ARDMA_CALL_WRITES),
	ARDMA_CALL(DESTROY_QUEUE, ardma_call_destroy_queue, ARDMA_CALL_WRITES),
	ARDMA_CALL(EXPORT_KEY, ardma_call_export_key, ARDMA_CALL_WRITES),
};

long ardma_ioctl(struct file *filp, unsigned int number, unsigned long address)
{
	struct ardma_file *file = filp->private_data;
	void __user *user = (void __user *)address;
	unsigned int index = _IOC_NR(number);
	union ardma_argument argument = {};
	const struct ardma_call *call;
	int ret;

	if (index >= ARRAY_SIZE(ardma_calls))
		return -ENOTTY;
	call = &ardma_calls[array_index_nospec(index, ARRAY_SIZE(ardma_calls))];
	/* Type, size and direction have to be right as well; some indices are no call's. */
	if (!call->run || call->number != number)
		return -ENOTTY;
	if ((call->flags & ARDMA_CALL_WRITES) && !(filp->f_mode & FMODE_WRITE))
		return -EACCES;
	if (READ_ONCE(file->adaptor->health) == ARDMA_STALE && !(call->flags & ARDMA_CALL_STALE))
		return -ESTALE;
	if ((_IOC_DIR(number) & _IOC_WRITE) && copy_from_user(&argument, user, _IOC_SIZE(number)))
		return -EFAULT;
	ret = call->run(file, &argument);
	if (ret || !(_IOC_DIR(number) & _IOC_READ))
		return ret;
	if (!copy_to_user(user, &argument, _IOC_SIZE(number)))
		return 0;
	ardma_take_back(file, number, &argument);
	return -EFAULT;
}
