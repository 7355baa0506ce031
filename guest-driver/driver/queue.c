// SPDX-License-Identifier: GPL-2.0-only
/*
 * Queues of the engine. Their rings are in memory that the process has registered, and it posts by
 * itself; here they are made and destroyed, their doorbell pages are mapped, and their interrupts
 * become signals of eventfds.
 *
 * A doorbell page is mapped only while its queue lives: its number may be another process's next. In
 * its place comes a page of memory that does nothing, so that a process is not killed for a queue that a
 * reset took from it.
 */
#include <linux/eventfd.h>
#include <linux/interrupt.h>
#include <linux/mm.h>
#include <linux/slab.h>

#include "driver.h"

/* The form of a doorbell's offset for mmap(): the bit that says so, a serial number, the queue's. */
#define ARDMA_DOORBELL_SERIAL_SHIFT	28
#define ARDMA_DOORBELL_SERIALS		(1U << 31)

static_assert((u64)ARDMA_DOORBELL_SERIALS << ARDMA_DOORBELL_SERIAL_SHIFT == ARDMA_ADDR_DOORBELL);
static_assert(PAGE_SHIFT == ARDMA_DOORBELL_PAGE_LOG2);

/* A queue that the adaptor has, or had. All but what is constant under command_lock. */
struct ardma_queue {
	struct list_head entry;			/* in adaptor->queues */
	struct ardma_file *file;		/* whose it is; NULL: nobody's, to be withdrawn */
	struct ardma_account *account;
	struct ardma_registration *registration; /* with its rings */
	struct eventfd_ctx *event;		/* or NULL */
	u64 doorbell;				/* its page's offset for mmap() */
	u32 number;
	bool lost;				/* the adaptor let go of it */
};

/* Offset in the device file; a serial number keeps an old mapping from meaning a new queue. */
static u64 ardma_doorbell_offset(u32 number)
{
	static atomic_t serial;
	u64 bits = (u32)atomic_inc_return(&serial) % ARDMA_DOORBELL_SERIALS;

	return ARDMA_ADDR_DOORBELL | bits << ARDMA_DOORBELL_SERIAL_SHIFT |
	       (u64)number << ARDMA_DOORBELL_PAGE_LOG2;
}

static u32 ardma_doorbell_number(u64 offset)
{
	return (offset & (BIT_ULL(ARDMA_DOORBELL_SERIAL_SHIFT) - 1)) >> ARDMA_DOORBELL_PAGE_LOG2;
}

/* This file's living queue with this doorbell page. */
static bool ardma_doorbell_lives(struct ardma_file *file, u64 offset)
{
	struct ardma_queue *queue;

	lockdep_assert_held(&file->adaptor->doorbell_lock);

	queue = xa_load(&file->adaptor->live_queues, ardma_doorbell_number(offset));
	return queue && queue->file == file && queue->doorbell == offset;
}

/* From here on its doorbell page can't be mapped, and no interrupt is told to its process. */
static void ardma_queue_hide(struct ardma_adaptor *adaptor, struct ardma_queue *queue)
{
	mutex_lock(&adaptor->doorbell_lock);
	if (xa_load(&adaptor->live_queues, queue->number) == queue)
		xa_erase(&adaptor->live_queues, queue->number);
	mutex_unlock(&adaptor->doorbell_lock);
	/* A file that is being closed has no mapping any more. */
	if (queue->file)
		unmap_mapping_range(queue->file->mapping, queue->doorbell, PAGE_SIZE, 1);
}

/* The adaptor has let go of it. Whoever waits for it looks, and finds that it is lost. */
static void ardma_queue_release(struct ardma_adaptor *adaptor, struct ardma_queue *queue)
{
	ardma_queue_hide(adaptor, queue);
	queue->registration->users--;
	queue->lost = true;
	if (queue->event)
		eventfd_signal(queue->event);
}

/* One that is in no list. */
static void ardma_queue_free(struct ardma_queue *queue)
{
	if (queue->event)
		eventfd_ctx_put(queue->event);
	kfree(queue);
}

/* From here on it is the list's, and counts as its user's. */
static void ardma_queue_add(struct ardma_adaptor *adaptor, struct ardma_queue *queue)
{
	queue->account = queue->file->account;
	queue->account->queues++;
	queue->registration->users++;
	list_add_tail(&queue->entry, &adaptor->queues);
}

/* The opposite. */
static void ardma_queue_drop(struct ardma_queue *queue)
{
	queue->account->queues--;
	list_del(&queue->entry);
	ardma_queue_free(queue);
}

/* The end of CREATE_QUEUE. Without a queue there is no number that could be hidden. */
static void ardma_queue_created(struct ardma_adaptor *adaptor, void *object, int ret, u64 result)
{
	struct ardma_queue *queue = object;

	queue->number = result;
	if (!ret)
		return;
	queue->registration->users--;
	queue->lost = true;
}

/* The end of DESTROY_QUEUE. A queue that the adaptor does not have is as good as destroyed. */
static void ardma_queue_destroyed(struct ardma_adaptor *adaptor, void *object, int ret, u64 result)
{
	if (!ret || ret == -ENOENT)
		ardma_queue_release(adaptor, object);
}

/* Has the adaptor destroy the queue; on an error it stays, but without its doorbell page. */
static int ardma_queue_withdraw(struct ardma_adaptor *adaptor, struct ardma_queue *queue)
{
	int ret;

	ardma_queue_hide(adaptor, queue);
	ret = ardma_command_destroy_queue(adaptor, queue->number, queue, ardma_queue_destroyed);
	return ret == -ENOENT ? -ESTALE : ret;
}

static int ardma_check_rings(const struct ardma_create_queue *argument, u64 length)
{
	u64 submission, completion;

	if (argument->entries_log2 < ARDMA_QUEUE_ENTRIES_LOG2_MIN ||
	    argument->entries_log2 > ARDMA_QUEUE_ENTRIES_LOG2_MAX ||
	    !IS_ALIGNED(argument->submission | argument->completion, ARDMA_QUEUE_GRAIN) ||
	    argument->completion < ARDMA_QUEUE_HEAD)
		return -EINVAL;
	submission = 1ULL << (argument->entries_log2 + ARDMA_SUBMISSION_LOG2);
	completion = 1ULL << (argument->entries_log2 + ARDMA_COMPLETION_LOG2);
	if (submission > length || argument->submission > length - submission ||
	    completion > length || argument->completion > length - completion)
		return -EINVAL;
	return 0;
}

/* Under command_lock: whether the queue may be made, and of which memory. */
static int ardma_queue_check(struct ardma_queue *queue, const struct ardma_create_queue *argument)
{
	struct ardma_file *file = queue->file;
	struct ardma_registration *registration = ardma_registration_find(file, argument->key);
	int ret;

	if (!registration)
		return -ENOENT;
	if (registration->lost)
		return -ESTALE;
	ret = ardma_check_rings(argument, registration->length);
	if (ret)
		return ret;
	queue->registration = registration;
	return ardma_account_check(file->account->queues, 1,
				   file->adaptor->node_count * ARDMA_QUEUES_PER_NODE);
}

/* Lets its doorbell page be mapped, and its interrupts be told. */
static int ardma_queue_show(struct ardma_adaptor *adaptor, struct ardma_queue *queue)
{
	int ret;

	queue->doorbell = ardma_doorbell_offset(queue->number);
	mutex_lock(&adaptor->doorbell_lock);
	ret = xa_err(xa_store(&adaptor->live_queues, queue->number, queue, GFP_KERNEL));
	mutex_unlock(&adaptor->doorbell_lock);
	/* Without memory for its number nothing could be done with it. */
	if (ret)
		ardma_queue_withdraw(adaptor, queue);
	return ret;
}

/*
 * Under command_lock, which keeps the memory registered. The queue is the list's then, or gone:
 * where an error leaves open whether the adaptor has it, it becomes nobody's.
 */
static int ardma_queue_make(struct ardma_queue *queue, struct ardma_create_queue *argument)
{
	struct ardma_adaptor *adaptor = queue->file->adaptor;
	int ret;

	ret = ardma_queue_check(queue, argument);
	if (ret) {
		ardma_queue_free(queue);
		return ret;
	}
	ardma_queue_add(adaptor, queue);
	ret = ardma_command_create_queue(adaptor, queue->registration->domain, argument, queue,
					 ardma_queue_created);
	if (!ret)
		ret = ardma_queue_show(adaptor, queue);
	if (!ret) {
		argument->queue = queue->number;
		argument->doorbell = queue->doorbell;
	} else if (queue->lost) {
		ardma_queue_drop(queue);
	} else {
		queue->file = NULL;
	}
	return ret;
}

int ardma_create_queue(struct ardma_file *file, struct ardma_create_queue *argument)
{
	struct ardma_adaptor *adaptor = file->adaptor;
	struct ardma_queue *queue;
	int ret;

	if (argument->queue || argument->doorbell)
		return -EINVAL;
	queue = kzalloc(sizeof(*queue), GFP_KERNEL_ACCOUNT);
	if (!queue)
		return -ENOMEM;
	queue->file = file;
	if (argument->eventfd != ARDMA_NO_EVENTFD) {
		queue->event = eventfd_ctx_fdget(argument->eventfd);
		if (IS_ERR(queue->event)) {
			ret = PTR_ERR(queue->event);
			queue->event = NULL;
			goto err_free;
		}
	}
	ret = ardma_command_enter(adaptor);
	if (ret)
		goto err_free;
	ret = ardma_queue_make(queue, argument);
	ardma_command_leave(adaptor);
	return ret;

err_free:
	ardma_queue_free(queue);
	return ret;
}

static struct ardma_queue *ardma_queue_find(struct ardma_file *file, u64 doorbell)
{
	struct ardma_queue *queue;

	list_for_each_entry(queue, &file->adaptor->queues, entry)
		if (queue->file == file && queue->doorbell == doorbell)
			return queue;
	return NULL;
}

int ardma_destroy_queue(struct ardma_file *file, u64 doorbell)
{
	struct ardma_adaptor *adaptor = file->adaptor;
	struct ardma_queue *queue;
	int ret;

	ret = ardma_command_enter(adaptor);
	if (ret)
		return ret;
	queue = ardma_queue_find(file, doorbell);
	if (!queue)
		ret = -ENOENT;
	else if (queue->lost)
		ret = -ESTALE;
	else
		ret = ardma_queue_withdraw(adaptor, queue);
	if (queue && queue->lost)
		ardma_queue_drop(queue);
	ardma_command_leave(adaptor);
	return ret;
}

/* As ardma_grants_withdraw(). */
int ardma_queues_withdraw(struct ardma_adaptor *adaptor, struct ardma_file *file)
{
	struct ardma_queue *queue;
	int ret = 0;

	lockdep_assert_held(&adaptor->command_lock);

	list_for_each_entry(queue, &adaptor->queues, entry) {
		if (queue->file != file)
			continue;
		if (!queue->lost)
			ret = ardma_queue_withdraw(adaptor, queue);
		queue->file = NULL;
		if (!queue->lost)
			return file ? 2 : ret;
		ardma_queue_drop(queue);
		return 1;
	}
	return 0;
}

/* Whoever waits for a queue is to look whether it is still there. */
void ardma_queues_wake(struct ardma_adaptor *adaptor)
{
	struct ardma_queue *queue;

	mutex_lock(&adaptor->command_lock);
	list_for_each_entry(queue, &adaptor->queues, entry)
		if (queue->event)
			eventfd_signal(queue->event);
	mutex_unlock(&adaptor->command_lock);
}

/* The adaptor began a new life, in which it has no queue. */
void ardma_queues_lost(struct ardma_adaptor *adaptor)
{
	struct ardma_queue *queue, *next;

	lockdep_assert_held_write(&adaptor->gate);
	lockdep_assert_held(&adaptor->command_lock);

	list_for_each_entry_safe(queue, next, &adaptor->queues, entry) {
		if (!queue->lost)
			ardma_queue_release(adaptor, queue);
		if (!queue->file)
			ardma_queue_drop(queue);
	}
}

/* Forgets every queue at removal: nobody waits for one any more. */
void ardma_queues_forget(struct ardma_adaptor *adaptor)
{
	struct ardma_queue *queue, *next;

	lockdep_assert_held_write(&adaptor->gate);

	mutex_lock(&adaptor->command_lock);
	list_for_each_entry_safe(queue, next, &adaptor->queues, entry) {
		if (!queue->lost)
			ardma_queue_hide(adaptor, queue);
		if (queue->event)
			eventfd_signal(queue->event);
		ardma_queue_drop(queue);
	}
	mutex_unlock(&adaptor->command_lock);
}

/* Asks the adaptor which queues have completions that were armed, and signals their eventfds. */
static void ardma_queue_work(struct work_struct *work)
{
	struct ardma_adaptor *adaptor = container_of(work, struct ardma_adaptor, queue_work);
	u32 budget = adaptor->node_count * ARDMA_QUEUES_PER_NODE;

	if (ardma_enter(adaptor))
		return;
	/* Cleared first: what comes from here on raises the vector again. */
	ardma_write32(adaptor, ARDMA_REG_EVENT, ARDMA_EVENT_QUEUE);
	mutex_lock(&adaptor->doorbell_lock);
	while (budget--) {
		u32 number = ardma_read32(adaptor, ARDMA_REG_QUEUE_READY);
		struct ardma_queue *queue;

		/* All-ones also where the adaptor does not answer. */
		if (number == ARDMA_QUEUE_NONE)
			break;
		queue = xa_load(&adaptor->live_queues, number);
		if (queue && queue->event)
			eventfd_signal(queue->event);
		cond_resched();
	}
	mutex_unlock(&adaptor->doorbell_lock);
	ardma_leave(adaptor);
}

/* The work may wait, which an interrupt handler may not. */
void ardma_queues_ready(struct ardma_adaptor *adaptor)
{
	queue_work(system_highpri_wq, &adaptor->queue_work);
}

irqreturn_t ardma_queue_interrupt(int irq, void *data)
{
	ardma_queues_ready(data);
	return IRQ_HANDLED;
}

void ardma_queues_create(struct ardma_adaptor *adaptor)
{
	INIT_LIST_HEAD(&adaptor->registrations);
	INIT_LIST_HEAD(&adaptor->queues);
	ida_init(&adaptor->domains);
	mutex_init(&adaptor->doorbell_lock);
	xa_init(&adaptor->live_queues);
	INIT_WORK(&adaptor->queue_work, ardma_queue_work);
}

static phys_addr_t ardma_doorbell_page(struct ardma_adaptor *adaptor, u32 number)
{
	u64 part = (u64)adaptor->node_count << ARDMA_IO_WINDOW_BITS;

	return pci_resource_start(adaptor->pdev, ARDMA_BAR_IO) + ARDMA_IO_DOORBELL_PART * part +
	       ((u64)number << ARDMA_DOORBELL_PAGE_LOG2);
}

static vm_fault_t ardma_doorbell_fault(struct vm_fault *vmf)
{
	struct vm_area_struct *vma = vmf->vma;
	struct ardma_file *file = vma->vm_private_data;
	struct ardma_adaptor *adaptor = file->adaptor;
	u64 offset = (u64)vma->vm_pgoff << PAGE_SHIFT;
	pgprot_t protection = vma->vm_page_prot;
	phys_addr_t page;
	vm_fault_t ret;

	if (ardma_enter(adaptor))
		return VM_FAULT_SIGBUS;
	/* Held over the mapping: a queue that goes then finds the page mapped, and takes it away. */
	mutex_lock(&adaptor->doorbell_lock);
	if (ardma_doorbell_lives(file, offset)) {
		page = ardma_doorbell_page(adaptor, ardma_doorbell_number(offset));
		protection = pgprot_noncached(protection);
	} else {
		/* Memory, which is cached as all memory is. */
		page = virt_to_phys((void *)file->sink);
	}
	ret = vmf_insert_pfn_prot(vma, vma->vm_start, page >> PAGE_SHIFT, protection);
	mutex_unlock(&adaptor->doorbell_lock);
	ardma_leave(adaptor);
	return ret;
}

static const struct vm_operations_struct ardma_doorbell_operations = {
	.fault = ardma_doorbell_fault,
};

int ardma_doorbell_mmap(struct ardma_file *file, struct vm_area_struct *vma)
{
	struct ardma_adaptor *adaptor = file->adaptor;
	u64 offset = (u64)vma->vm_pgoff << PAGE_SHIFT;
	int ret = 0;

	if (!(vma->vm_flags & VM_MAYSHARE) || (vma->vm_flags & VM_EXEC) ||
	    vma->vm_end - vma->vm_start != PAGE_SIZE)
		return -EINVAL;
	mutex_lock(&adaptor->doorbell_lock);
	if (!file->sink)
		file->sink = get_zeroed_page(GFP_KERNEL_ACCOUNT);
	if (!file->sink)
		ret = -ENOMEM;
	else if (!ardma_doorbell_lives(file, offset))
		ret = -ENXIO;
	mutex_unlock(&adaptor->doorbell_lock);
	if (ret)
		return ret;
	/* A child of the process does not post. */
	vm_flags_mod(vma, VM_IO | VM_PFNMAP | VM_DONTEXPAND | VM_DONTDUMP | VM_DONTCOPY, VM_MAYEXEC);
	vma->vm_private_data = file;
	vma->vm_ops = &ardma_doorbell_operations;
	return 0;
}
