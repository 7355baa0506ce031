// SPDX-License-Identifier: GPL-2.0-only
/*
 * Messages of other nodes: taken out of the adaptor's queue, and put into the ring of whoever
 * listens to their doorbell.
 *
 * No ring ever overflows: a listener that has a whole queue's worth of messages in its ring has its
 * doorbells held, so that the adaptor refuses more of them, and has room for one more queue's worth,
 * which is the most that can come before that.
 */
#include <linux/anon_inodes.h>
#include <linux/bitops.h>
#include <linux/interrupt.h>
#include <linux/log2.h>
#include <linux/moduleparam.h>
#include <linux/nospec.h>
#include <linux/poll.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "driver.h"

/* Messages copied to a program in one go. */
#define ARDMA_READ_BATCH	16

static unsigned int message_coalesce_count;
module_param(message_coalesce_count, uint, 0644);
MODULE_PARM_DESC(message_coalesce_count,
		 "Interrupt when so many messages wait (0: at once); read when someone begins to listen");

static unsigned int message_coalesce_us;
module_param(message_coalesce_us, uint, 0644);
MODULE_PARM_DESC(message_coalesce_us,
		 "and when the first of them has waited for so many microseconds (0: at once)");

/* A file of ARDMA_IOC_LISTEN. All but the constant fields under message_lock. */
struct ardma_listener {
	struct ardma_adaptor *adaptor;		/* holds a reference of its device */
	struct ardma_account *account;
	u64 doorbells;
	u64 nodes[4];
	u64 masked;				/* of the doorbells */
	bool held;				/* the doorbells refuse messages */
	bool lost;				/* the adaptor was reset, and the doorbells are closed */
	struct mutex read_lock;			/* one reader at a time; outside of all other locks */
	wait_queue_head_t wait;
	u32 size;				/* of the ring, in messages: a power of two */
	u32 head;				/* free-running: where the next one is put */
	u32 tail;				/* free-running: the oldest one */
	struct ardma_message *ring;
};

static u32 ardma_fill(const struct ardma_listener *listener)
{
	return READ_ONCE(listener->head) - READ_ONCE(listener->tail);
}

static u32 ardma_doorbell_entry(unsigned int doorbell)
{
	return ARDMA_DOORBELL_TABLE + doorbell * ARDMA_DOORBELL_ENTRY_SIZE;
}

static void ardma_write_controls(struct ardma_listener *listener)
{
	struct ardma_adaptor *adaptor = listener->adaptor;
	unsigned int i;

	for (i = 0; i < ARDMA_DOORBELLS; i++) {
		u32 control = adaptor->message_vector;

		if (!(listener->doorbells & BIT_ULL(i)))
			continue;
		if (listener->held)
			control |= ARDMA_DOORBELL_HOLD;
		if (listener->masked & BIT_ULL(i))
			control |= ARDMA_DOORBELL_MASKED;
		ardma_write32(adaptor, ardma_doorbell_entry(i) + ARDMA_DOORBELL_CONTROL, control);
	}
}

/* Opens the doorbell to the listener's nodes, or closes it. */
static void ardma_write_nodes(struct ardma_listener *listener, unsigned int doorbell, bool open)
{
	u32 nodes = ardma_doorbell_entry(doorbell) + ARDMA_DOORBELL_NODES;
	unsigned int word;

	for (word = 0; word < ARRAY_SIZE(listener->nodes); word++)
		ardma_write64(listener->adaptor, nodes + word * 8,
			      open ? listener->nodes[word] : 0);
}

static void ardma_hold(struct ardma_listener *listener, bool hold)
{
	if (listener->held == hold || listener->lost)
		return;
	listener->held = hold;
	ardma_write_controls(listener);
}

static void ardma_put(struct ardma_listener *listener, const struct ardma_message *message)
{
	struct ardma_adaptor *adaptor = listener->adaptor;

	/* Never so, see above. */
	if (WARN_ON_ONCE(ardma_fill(listener) >= listener->size))
		return;
	listener->ring[listener->head & (listener->size - 1)] = *message;
	WRITE_ONCE(listener->head, listener->head + 1);
	if (ardma_fill(listener) >= adaptor->message_limit)
		ardma_hold(listener, true);
	wake_up(&listener->wait);
}

/* Empties the adaptor's queue. True where there may be more. */
static bool ardma_drain(struct ardma_adaptor *adaptor)
{
	u32 number = 0, budget;

	lockdep_assert_held(&adaptor->message_lock);

	for (budget = adaptor->message_limit; budget; budget--) {
		u32 info = ardma_read32(adaptor, ARDMA_REG_MESSAGE_INFO);
		struct ardma_message message = {
			.node = ARDMA_INFO_SOURCE(info),
			.doorbell = ARDMA_INFO_DOORBELL(info),
			.size = ARDMA_INFO_SIZE(info),
		};
		struct ardma_listener *listener;

		if (!(info & ARDMA_INFO_VALID) || PCI_POSSIBLE_ERROR(info) ||
		    message.doorbell >= ARDMA_DOORBELLS)
			return false;
		message.data = ardma_read64(adaptor, ARDMA_REG_MESSAGE_DATA);
		/* The first one's number is asked for: what is written has to be right. */
		if (budget == adaptor->message_limit)
			number = ardma_read32(adaptor, ARDMA_REG_MESSAGE_NUMBER);
		ardma_write32(adaptor, ARDMA_REG_MESSAGE_POP, number++);
		listener = adaptor->listeners[array_index_nospec(message.doorbell, ARDMA_DOORBELLS)];
		if (listener)
			ardma_put(listener, &message);
		cond_resched();
	}
	return true;
}

/* After an interrupt: the adaptor tells of a message once, so it has to look until none is left. */
static void ardma_message_work(struct work_struct *work)
{
	struct ardma_adaptor *adaptor = container_of(work, struct ardma_adaptor, message_work);
	bool more;

	if (ardma_enter(adaptor))
		return;
	mutex_lock(&adaptor->message_lock);
	more = ardma_drain(adaptor);
	mutex_unlock(&adaptor->message_lock);
	ardma_leave(adaptor);
	if (more)
		schedule_work(work);
}

irqreturn_t ardma_message_interrupt(int irq, void *data)
{
	struct ardma_adaptor *adaptor = data;

	schedule_work(&adaptor->message_work);
	return IRQ_HANDLED;
}

void ardma_messages_create(struct ardma_adaptor *adaptor)
{
	mutex_init(&adaptor->message_lock);
	INIT_WORK(&adaptor->message_work, ardma_message_work);
}

/* A doorbell is nobody's again. */
static void ardma_listener_forget(struct ardma_adaptor *adaptor, unsigned int doorbell)
{
	adaptor->listeners[doorbell]->account->doorbells--;
	adaptor->listeners[doorbell] = NULL;
}

/* The doorbells are closed: whoever listens to one is told. */
static void ardma_forget_listeners(struct ardma_adaptor *adaptor)
{
	unsigned int i;

	for (i = 0; i < ARDMA_DOORBELLS; i++) {
		struct ardma_listener *listener = adaptor->listeners[i];

		if (!listener)
			continue;
		ardma_listener_forget(adaptor, i);
		WRITE_ONCE(listener->lost, true);
		wake_up_all(&listener->wait);
	}
}

/*
 * The adaptor begins a new life: its queue is empty and its doorbells are closed. Messages that were
 * in the queue are lost.
 */
void ardma_messages_lost(struct ardma_adaptor *adaptor)
{
	mutex_lock(&adaptor->message_lock);
	ardma_forget_listeners(adaptor);
	mutex_unlock(&adaptor->message_lock);
}

/* Closes every doorbell. What came before is in the rings then, and nothing comes after. */
void ardma_messages_withdraw(struct ardma_adaptor *adaptor)
{
	unsigned int i;

	mutex_lock(&adaptor->message_lock);
	for (i = 0; i < ARDMA_DOORBELLS; i++)
		if (adaptor->listeners[i])
			ardma_write_nodes(adaptor->listeners[i], i, false);
	/* No more than the queue holds is in it now. */
	ardma_drain(adaptor);
	ardma_forget_listeners(adaptor);
	mutex_unlock(&adaptor->message_lock);
}

/* Takes the doorbells for the listener, or none. The gate is held. */
static int ardma_listener_open(struct ardma_listener *listener)
{
	struct ardma_adaptor *adaptor = listener->adaptor;
	unsigned int count = hweight64(listener->doorbells);
	unsigned int i;
	int ret;

	mutex_lock(&adaptor->message_lock);
	ret = ardma_account_check(listener->account->doorbells, count, ARDMA_DOORBELLS);
	for (i = 0; i < ARDMA_DOORBELLS; i++)
		if ((listener->doorbells & BIT_ULL(i)) && adaptor->listeners[i])
			ret = -EBUSY;
	ret = ret ?: ardma_verify(adaptor);
	if (ret)
		goto out;
	listener->account->doorbells += count;
	for (i = 0; i < ARDMA_DOORBELLS; i++)
		if (listener->doorbells & BIT_ULL(i))
			adaptor->listeners[i] = listener;
	ardma_write32(adaptor, ARDMA_REG_MESSAGE_COALESCE_COUNT, READ_ONCE(message_coalesce_count));
	ardma_write32(adaptor, ARDMA_REG_MESSAGE_COALESCE_TIME, READ_ONCE(message_coalesce_us));
	ardma_write_controls(listener);
	for (i = 0; i < ARDMA_DOORBELLS; i++)
		if (listener->doorbells & BIT_ULL(i))
			ardma_write_nodes(listener, i, true);
	/* The doorbells are open when the program knows of it. */
	ardma_answers(adaptor);
out:
	mutex_unlock(&adaptor->message_lock);
	return ret;
}

/* Gives the doorbells back. What is in the queue for them goes with the listener. */
static void ardma_listener_close(struct ardma_listener *listener)
{
	struct ardma_adaptor *adaptor = listener->adaptor;
	unsigned int i;

	/* A listener of an adaptor that is gone is lost, and has none. */
	if (ardma_enter_always(adaptor))
		return;
	mutex_lock(&adaptor->message_lock);
	if (!listener->lost) {
		for (i = 0; i < ARDMA_DOORBELLS; i++)
			if (listener->doorbells & BIT_ULL(i))
				ardma_write_nodes(listener, i, false);
		ardma_drain(adaptor);
		for (i = 0; i < ARDMA_DOORBELLS; i++)
			if (listener->doorbells & BIT_ULL(i))
				ardma_listener_forget(adaptor, i);
	}
	mutex_unlock(&adaptor->message_lock);
	ardma_leave(adaptor);
}

static void ardma_listener_free(struct ardma_listener *listener)
{
	put_device(&listener->adaptor->dev);
	kvfree(listener->ring);
	kfree(listener);
}

static int ardma_listener_release(struct inode *inode, struct file *filp)
{
	struct ardma_listener *listener = filp->private_data;

	ardma_listener_close(listener);
	ardma_listener_free(listener);
	return 0;
}

/*
 * How many messages there are to read, where there are none after a look into the adaptor's queue;
 * or -ESTALE, -ENODEV where there will be none.
 */
static int ardma_listener_look(struct ardma_listener *listener)
{
	struct ardma_adaptor *adaptor = listener->adaptor;
	u32 fill = ardma_fill(listener);
	int ret;

	if (fill)
		return fill;
	ret = ardma_enter(adaptor);
	if (ret)
		return ardma_fill(listener) ?: ret;
	mutex_lock(&adaptor->message_lock);
	if (!listener->lost && ardma_drain(adaptor))
		schedule_work(&adaptor->message_work);
	fill = ardma_fill(listener);
	mutex_unlock(&adaptor->message_lock);
	ardma_leave(adaptor);
	return fill ?: READ_ONCE(listener->lost) ? -ESTALE : 0;
}

/* The program has these messages. */
static void ardma_listener_consume(struct ardma_listener *listener, u32 count)
{
	struct ardma_adaptor *adaptor = listener->adaptor;
	bool entered;

	/* Without the gate nothing is held any more either. */
	entered = !ardma_enter_always(adaptor);
	mutex_lock(&adaptor->message_lock);
	WRITE_ONCE(listener->tail, listener->tail + count);
	if (entered && ardma_fill(listener) <= adaptor->message_limit / 2)
		ardma_hold(listener, false);
	mutex_unlock(&adaptor->message_lock);
	if (entered)
		ardma_leave(adaptor);
}

static bool ardma_listener_ready(struct ardma_listener *listener)
{
	return ardma_fill(listener) || READ_ONCE(listener->lost) ||
	       READ_ONCE(listener->adaptor->gone);
}

/* Copies out what there is, up to max messages: how many, or an error where that is none. */
static int ardma_listener_copy(struct ardma_listener *listener, char __user *to, u32 max)
{
	struct ardma_message batch[ARDMA_READ_BATCH];
	u32 done = 0;

	while (done < max) {
		u32 count = min3(max - done, ardma_fill(listener), (u32)ARDMA_READ_BATCH);
		u32 i;

		if (!count)
			break;
		/* Only readers take out of the ring, and there is one of them. */
		mutex_lock(&listener->adaptor->message_lock);
		for (i = 0; i < count; i++)
			batch[i] = listener->ring[(listener->tail + i) & (listener->size - 1)];
		mutex_unlock(&listener->adaptor->message_lock);
		if (copy_to_user(to + done * sizeof(*batch), batch, count * sizeof(*batch)))
			return done ?: -EFAULT;
		ardma_listener_consume(listener, count);
		done += count;
	}
	return done;
}

static ssize_t ardma_listener_read(struct file *filp, char __user *to, size_t length, loff_t *offset)
{
	struct ardma_listener *listener = filp->private_data;
	u32 max = min_t(size_t, length / sizeof(struct ardma_message), listener->size);
	int ret;

	if (!max)
		return -EINVAL;
	for (;;) {
		if (mutex_lock_interruptible(&listener->read_lock))
			return -ERESTARTSYS;
		ret = ardma_listener_look(listener);
		if (ret > 0)
			ret = ardma_listener_copy(listener, to, max);
		mutex_unlock(&listener->read_lock);
		if (ret > 0)
			return (ssize_t)ret * sizeof(struct ardma_message);
		if (ret < 0)
			return ret;
		if (filp->f_flags & O_NONBLOCK)
			return -EAGAIN;
		ret = wait_event_interruptible(listener->wait, ardma_listener_ready(listener));
		if (ret)
			return ret;
	}
}

static __poll_t ardma_listener_poll(struct file *filp, struct poll_table_struct *table)
{
	struct ardma_listener *listener = filp->private_data;
	__poll_t mask = 0;

	poll_wait(filp, &listener->wait, table);
	if (ardma_fill(listener))
		mask |= EPOLLIN | EPOLLRDNORM;
	if (READ_ONCE(listener->lost))
		mask |= EPOLLERR;
	if (READ_ONCE(listener->adaptor->gone))
		mask |= EPOLLHUP | EPOLLERR;
	return mask;
}

static int ardma_call_mask(struct ardma_listener *listener, const struct ardma_mask *mask)
{
	struct ardma_adaptor *adaptor = listener->adaptor;
	int ret;

	if (mask->reserved || mask->masked > 1 || !mask->doorbells ||
	    (mask->doorbells & ~listener->doorbells))
		return -EINVAL;
	ret = ardma_enter(adaptor);
	if (ret)
		return ret;
	mutex_lock(&adaptor->message_lock);
	if (listener->lost) {
		ret = -ESTALE;
	} else {
		if (mask->masked)
			listener->masked |= mask->doorbells;
		else
			listener->masked &= ~mask->doorbells;
		ardma_write_controls(listener);
	}
	mutex_unlock(&adaptor->message_lock);
	ardma_leave(adaptor);
	return ret;
}

static long ardma_listener_ioctl(struct file *filp, unsigned int number, unsigned long address)
{
	struct ardma_mask mask;

	if (number != ARDMA_IOC_MASK)
		return -ENOTTY;
	if (copy_from_user(&mask, (void __user *)address, sizeof(mask)))
		return -EFAULT;
	return ardma_call_mask(filp->private_data, &mask);
}

static const struct file_operations ardma_listener_operations = {
	.owner = THIS_MODULE,
	.release = ardma_listener_release,
	.read = ardma_listener_read,
	.poll = ardma_listener_poll,
	.unlocked_ioctl = ardma_listener_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
};

/* ARDMA_IOC_LISTEN: the new file's descriptor. */
int ardma_listen(struct ardma_file *file, const struct ardma_listen *argument)
{
	struct ardma_adaptor *adaptor = file->adaptor;
	struct ardma_listener *listener;
	int ret;

	if (!argument->doorbells || !memchr_inv(argument->nodes, 0, sizeof(argument->nodes)) ||
	    (argument->flags & ~ARDMA_LISTEN_MASKED) || argument->reserved)
		return -EINVAL;
	listener = kzalloc(sizeof(*listener), GFP_KERNEL_ACCOUNT);
	if (!listener)
		return -ENOMEM;
	listener->adaptor = adaptor;
	listener->account = file->account;
	get_device(&adaptor->dev);
	listener->doorbells = argument->doorbells;
	memcpy(listener->nodes, argument->nodes, sizeof(listener->nodes));
	if (argument->flags & ARDMA_LISTEN_MASKED)
		listener->masked = listener->doorbells;
	mutex_init(&listener->read_lock);
	init_waitqueue_head(&listener->wait);
	listener->size = roundup_pow_of_two(2 * adaptor->message_limit);
	listener->ring = kvcalloc(listener->size, sizeof(*listener->ring), GFP_KERNEL_ACCOUNT);
	if (!listener->ring) {
		ret = -ENOMEM;
		goto err_free;
	}
	ret = ardma_enter(adaptor);
	if (ret)
		goto err_free;
	ret = ardma_listener_open(listener);
	ardma_leave(adaptor);
	if (ret)
		goto err_free;
	ret = anon_inode_getfd("[ardma-messages]", &ardma_listener_operations, listener,
			       O_RDONLY | O_CLOEXEC);
	if (ret >= 0)
		return ret;
	ardma_listener_close(listener);
err_free:
	ardma_listener_free(listener);
	return ret;
}
