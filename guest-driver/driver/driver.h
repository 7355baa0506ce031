/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the driver's files share.
 *
 * Two rules hold everywhere:
 *
 * - Memory that the adaptor was told about (exported pages, run lists, the mailbox) is given back
 *   only once the adaptor has acknowledged that it let go of it: by UNEXPORT, or by a new
 *   incarnation after a reset. Where it does not answer that memory is kept, and at removal lost
 *   for good rather than written into later.
 * - A register is touched, and a page of a BAR mapped, only under the gate and while the adaptor
 *   is not gone. Except by what makes it gone, and by the interrupt handler.
 * - A grant, registration or queue that is in its list belongs to command_lock: after that is
 *   unlocked another thread of the same file may free it, so what the program is told is read
 *   before.
 * - Programs wait killably. The file's release does not, but takes the locks anew for each thing
 *   that it gives back.
 *
 * Locks, outermost first: a listener's read_lock, PCI's lock against the removal of functions, the
 * PCI device's lock (probe, remove, reset), mmap_lock, gate, command_lock, bars_lock, message_lock,
 * assurance_lock, inventory_lock, doorbell_lock, files_lock, event_lock. Nothing touches user memory
 * under the gate, because page faults take it.
 */
#ifndef ARDMA_DRIVER_H
#define ARDMA_DRIVER_H

#include <linux/cdev.h>
#include <linux/completion.h>
#include <linux/device.h>
#include <linux/dma-mapping.h>
#include <linux/fs.h>
#include <linux/idr.h>
#include <linux/io-64-nonatomic-lo-hi.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/rwsem.h>
#include <linux/scatterlist.h>
#include <linux/spinlock.h>
#include <linux/uidgid.h>
#include <linux/wait.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>

#include <assured_rdma.h>
#include "assured_rdma_regs.h"

#define ARDMA_NAME	"assured_rdma"

#define ARDMA_FAILED_HASH_BITS	8

/* The first minor version of the device that has more than the node table and the commands. */
#define ARDMA_FULL_MINOR	1

/* What an adaptor holds of each (docs/device.md); of its queues NODE_COUNT says how many. */
#define ARDMA_WINDOWS		256
#define ARDMA_KEYS		4096

struct ardma_adaptor;
struct ardma_descriptor;
struct ardma_listener;
struct ardma_queue;

/* How the driver stands with the adaptor. */
enum ardma_health {
	ARDMA_WELL,
	ARDMA_SILENT,	/* it does not answer, or not as specified: EIO until a reset */
	ARDMA_STALE,	/* the function was disabled, or is another one now: ESTALE until a reset */
};

/* A page that the adaptor reads, and for the mailbox also writes. */
struct ardma_page {
	void *contents;			/* NULL: there is none */
	dma_addr_t bus;
};

/*
 * The end of a command on an object: called with the errno of the answer, or of what kept the
 * command from being sent, and with COMMAND_RESULT. Not called while the answer is missing.
 */
typedef void (*ardma_command_end)(struct ardma_adaptor *adaptor, void *object, int ret, u64 result);

/* What a user holds of an adaptor. Under command_lock, but for the doorbells, under message_lock. */
struct ardma_account {
	unsigned int windows;
	unsigned int keys;
	unsigned int queues;
	unsigned int doorbells;
};

/*
 * One adaptor. Lives as long as its struct device: until it is removed and its last file is
 * closed.
 */
struct ardma_adaptor {
	struct device dev;
	struct cdev cdev;
	struct pci_dev *pdev;
	void __iomem *registers;
	int minor;
	int irq;
	int message_irq;	/* 0 where messages share the events' */
	char message_irq_name[32];
	int queue_irq;		/* 0 where queues share the events' */
	char queue_irq_name[32];

	/* What the adaptor is: read once, by probe. */
	u32 version;
	u32 node;
	u32 node_count;
	u32 window_bits;
	u32 bus_bits;
	u32 block_bits;
	u32 message_limit;
	u64 window_size;
	u32 message_vector;	/* of the doorbells; that of the events where there is only one */
	u32 queue_vector;	/* the same, of the queues */

	/*
	 * Whether the hardware may be touched: taken for reading by whoever does, for writing by
	 * what takes the hardware away (removal, shutdown, reset, suspend).
	 */
	struct rw_semaphore gate;
	bool gone;		/* written under the gate; once true, always true */
	u64 incarnation;	/* the last one seen; written under the gate */
	u32 session;		/* the number with which checks are answered; written under the gate */
	enum ardma_health health; /* worse: at any time; better: by a new incarnation only */
	struct pci_saved_state *config; /* configuration space, as probe left it */

	/* One command at a time, and the list of windows, which mirrors what the adaptor holds. */
	struct mutex command_lock;
	struct ardma_page mailbox;
	struct completion command_done;
	/* The command whose answer is missing: the adaptor may still read the mailbox. */
	struct {
		u32 opcode;			/* 0: there is none */
		ardma_command_end end;
		void *object;
		unsigned long deadline;		/* in jiffies; then the function is reset */
	} late;
	struct delayed_work settle_work;
	u32 memory;		/* ARDMA_MEMORY_* */
	struct list_head grants;

	/* BARs of other functions that are exported, or are about to be. */
	struct mutex bars_lock;
	struct list_head bars;
	struct notifier_block bus_events;

	struct xarray accounts;		/* by uid; kept until the adaptor's structure goes */

	/* The same for memory of the engine, and for its queues. */
	struct list_head registrations;
	struct list_head queues;
	struct ida domains;

	/* The queues that the adaptor has, by number; and whose doorbell pages may be mapped. */
	struct mutex doorbell_lock;
	struct xarray live_queues;
	struct work_struct queue_work;

	/* Who listens to which doorbell. */
	struct mutex message_lock;
	struct work_struct message_work;
	struct ardma_listener *listeners[ARDMA_DOORBELLS];

	/* The registers that ask about ranges, and the failed blocks that the adaptor told of. */
	struct mutex assurance_lock;
	struct xarray failed;			/* by sequence number */
	struct hlist_head failed_blocks[1 << ARDMA_FAILED_HASH_BITS];
	unsigned int failed_count;
	unsigned long failed_last;		/* the last sequence number */
	unsigned long failed_pruned;		/* the last one that was looked at for room */

	/* The registers that tell of other nodes' windows. */
	struct mutex inventory_lock;

	/* The open files, whose mappings are taken away together. */
	struct mutex files_lock;
	struct list_head files;

	/* The counts; taken by the interrupt handler. */
	spinlock_t event_lock;
	u64 event_counts[ARDMA_EVENT_BITS];
	wait_queue_head_t event_wait;
};

/* One open file. */
struct ardma_file {
	struct ardma_adaptor *adaptor;
	struct list_head entry;			/* in adaptor->files */
	struct address_space *mapping;
	struct ardma_account *account;		/* of the user who opened it */
	u64 events_seen[ARDMA_EVENT_BITS];	/* under event_lock */
	unsigned long failed_seen;		/* under assurance_lock */
	u32 domain;				/* of its queues and registered memory */
	unsigned long sink;			/* a page for stores to queues that are gone, or 0; under doorbell_lock */
};

/* User memory, pinned, and where the adaptor finds it. */
struct ardma_memory {
	struct sg_table pages;
	struct mm_struct *mm;			/* is charged for them */
	unsigned long page_count;
	bool writable;
	bool mapped;				/* for DMA */
};

/* Memory of another PCI function, and where the adaptor finds it. */
struct ardma_bar {
	struct list_head entry;			/* in adaptor->bars */
	bool going;				/* the function is being removed; under bars_lock */
	struct pci_dev *function;		/* NULL where a window is of user memory */
	phys_addr_t address;
	dma_addr_t bus;
	u64 mapped;				/* bytes, for DMA */
};

/*
 * The list of runs of bus addresses that EXPORT takes; read by the adaptor only until EXPORT is
 * done.
 */
struct ardma_run_list {
	struct ardma_page *pages;
	u32 page_count;
	u32 run_count;
};

/* Memory of a process that the engine reaches. All but memory's and list's contents under command_lock. */
struct ardma_registration {
	struct list_head entry;			/* in adaptor->registrations */
	struct ardma_file *file;		/* whose it is; NULL: nobody's, to be withdrawn */
	struct ardma_account *account;
	struct ardma_memory memory;
	struct ardma_run_list list;		/* kept until REGISTER is answered */
	u64 length;
	u32 domain;
	u32 key;
	u32 rights;				/* ARDMA_LOCAL_* */
	unsigned int users;			/* queues and windows that the adaptor has of it */
	bool lost;				/* the adaptor let go of it; memory is given back */
};

/*
 * A window that this driver had the adaptor make. All but memory's and list's contents under
 * command_lock.
 */
struct ardma_grant {
	struct list_head entry;			/* in adaptor->grants */
	struct ardma_file *file;		/* whose it is; NULL: nobody's, to be withdrawn */
	struct ardma_account *account;
	struct pid *owner;
	bool of_bar;				/* of which of these two it is */
	struct ardma_memory memory;
	struct ardma_bar bar;
	struct ardma_registration *registration; /* NULL where it has memory of its own */
	u64 start;				/* in that */
	struct ardma_run_list list;		/* kept until EXPORT is answered */
	u64 offset;
	u64 length;
	u64 nodes[4];
	u8 name[ARDMA_NAME_SIZE];
	u32 rights;
	u32 space;				/* ARDMA_SPACE_* */
	bool lost;				/* the adaptor let go of it; memory is given back */
};

/*
 * Opens the gate for a user of the hardware: 0, or -ENODEV or (killed while waiting) -EINTR with
 * the gate closed again.
 */
static inline int ardma_enter(struct ardma_adaptor *adaptor)
{
	if (down_read_killable(&adaptor->gate))
		return -EINTR;
	if (!adaptor->gone)
		return 0;
	up_read(&adaptor->gate);
	return -ENODEV;
}

static inline void ardma_leave(struct ardma_adaptor *adaptor)
{
	up_read(&adaptor->gate);
}

/* The same for what has to be done also when the process is being killed. */
static inline int ardma_enter_always(struct ardma_adaptor *adaptor)
{
	down_read(&adaptor->gate);
	if (!adaptor->gone)
		return 0;
	up_read(&adaptor->gate);
	return -ENODEV;
}

/* Gate and one lock under it, killably: 0, or an error with neither. */
static inline int ardma_enter_locked(struct ardma_adaptor *adaptor, struct mutex *lock)
{
	int ret = ardma_enter(adaptor);

	if (ret)
		return ret;
	if (!mutex_lock_killable(lock))
		return 0;
	ardma_leave(adaptor);
	return -EINTR;
}

static inline void ardma_leave_locked(struct ardma_adaptor *adaptor, struct mutex *lock)
{
	mutex_unlock(lock);
	ardma_leave(adaptor);
}

/* The same for who uses what version 1.0 of the device did not have, which is EOPNOTSUPP there. */
static inline int ardma_enter_full(struct ardma_adaptor *adaptor, struct mutex *lock)
{
	if ((adaptor->version & 0xffff) < ARDMA_FULL_MINOR)
		return -EOPNOTSUPP;
	return ardma_enter_locked(adaptor, lock);
}

static inline u32 ardma_read32(struct ardma_adaptor *adaptor, u32 offset)
{
	return readl(adaptor->registers + offset);
}

static inline u64 ardma_read64(struct ardma_adaptor *adaptor, u32 offset)
{
	return readq(adaptor->registers + offset);
}

static inline void ardma_write32(struct ardma_adaptor *adaptor, u32 offset, u32 value)
{
	writel(value, adaptor->registers + offset);
}

static inline void ardma_write64(struct ardma_adaptor *adaptor, u32 offset, u64 value)
{
	writeq(value, adaptor->registers + offset);
}

/* hardware.c: identity, life and events of the adaptor. */
int ardma_identify(struct ardma_adaptor *adaptor);
bool ardma_answers(struct ardma_adaptor *adaptor);
int ardma_verify(struct ardma_adaptor *adaptor);
int ardma_health_errno(struct ardma_adaptor *adaptor);
void ardma_config_keep(struct ardma_adaptor *adaptor);
void ardma_config_restore(struct ardma_adaptor *adaptor);
int ardma_start(struct ardma_adaptor *adaptor);
bool ardma_reset_function(struct ardma_adaptor *adaptor);
irqreturn_t ardma_interrupt(int irq, void *data);
void ardma_announce(struct ardma_adaptor *adaptor, u32 events);
u32 ardma_pending_events(struct ardma_file *file, bool take);

/* recovery.c: what nobody owns any more, and commands that were not answered. */
void ardma_recovery_create(struct ardma_adaptor *adaptor);
void ardma_settle(struct ardma_adaptor *adaptor);

/* account.c: what one user may hold. */
struct ardma_account *ardma_account_of(struct ardma_adaptor *adaptor);
int ardma_account_check(unsigned int held, unsigned int more, unsigned int all);

/* command.c: the mailbox, and commands, for which the gate and command_lock are held. */
int ardma_mailbox_create(struct ardma_adaptor *adaptor);
void ardma_mailbox_destroy(struct ardma_adaptor *adaptor);
int ardma_command_enter(struct ardma_adaptor *adaptor);
int ardma_command_enter_always(struct ardma_adaptor *adaptor);
void ardma_command_leave(struct ardma_adaptor *adaptor);
void ardma_command_reap(struct ardma_adaptor *adaptor);
int ardma_command_export(struct ardma_adaptor *adaptor, struct ardma_grant *grant, u64 wanted,
			 ardma_command_end end);
int ardma_command_unexport(struct ardma_adaptor *adaptor, struct ardma_grant *grant,
			   ardma_command_end end);
int ardma_command_probe(struct ardma_adaptor *adaptor);
void ardma_command_probe_numa(struct ardma_adaptor *adaptor);
int ardma_command_register(struct ardma_adaptor *adaptor, struct ardma_registration *registration,
			   ardma_command_end end);
int ardma_command_deregister(struct ardma_adaptor *adaptor, struct ardma_registration *registration,
			     ardma_command_end end);
int ardma_command_create_queue(struct ardma_adaptor *adaptor, u32 domain,
			       const struct ardma_create_queue *argument, struct ardma_queue *queue,
			       ardma_command_end end);
int ardma_command_destroy_queue(struct ardma_adaptor *adaptor, u32 number,
				struct ardma_queue *queue, ardma_command_end end);

/* memory.c: user memory, pages for the adaptor, and run lists. */
int ardma_page_create(struct ardma_adaptor *adaptor, struct ardma_page *page);
int ardma_page_create_on(struct ardma_adaptor *adaptor, struct ardma_page *page, int node);
void ardma_page_destroy(struct ardma_adaptor *adaptor, struct ardma_page *page, bool keep);
void ardma_page_to_device(struct ardma_adaptor *adaptor, const struct ardma_page *page);
void ardma_page_to_cpu(struct ardma_adaptor *adaptor, const struct ardma_page *page);
int ardma_memory_pin(struct ardma_memory *memory, u64 address, u64 length, bool writable);
void ardma_memory_unpin(struct ardma_memory *memory);
void ardma_memory_abandon(struct ardma_adaptor *adaptor, struct ardma_memory *memory);
int ardma_memory_map(struct ardma_adaptor *adaptor, struct ardma_memory *memory);
void ardma_memory_unmap(struct ardma_adaptor *adaptor, struct ardma_memory *memory);
int ardma_run_list_create(struct ardma_adaptor *adaptor, struct ardma_memory *memory,
			  struct ardma_run_list *list);
int ardma_run_list_create_part(struct ardma_adaptor *adaptor, struct ardma_memory *memory, u64 start,
			       u64 length, struct ardma_run_list *list);
int ardma_run_list_create_one(struct ardma_adaptor *adaptor, u64 address, u64 length,
			      struct ardma_run_list *list);
void ardma_run_list_destroy(struct ardma_adaptor *adaptor, struct ardma_run_list *list, bool keep);
dma_addr_t ardma_run_list_bus(const struct ardma_run_list *list);

/* bus.c: memory of other PCI functions. */
int ardma_bar_take(struct ardma_adaptor *adaptor, struct ardma_bar *bar,
		   struct ardma_export_bar *argument);
void ardma_bar_give(struct ardma_adaptor *adaptor, struct ardma_bar *bar);
bool ardma_bar_going(struct ardma_adaptor *adaptor, struct ardma_bar *bar);
int ardma_bar_map(struct ardma_adaptor *adaptor, struct ardma_bar *bar, u64 length);
void ardma_bar_unmap(struct ardma_adaptor *adaptor, struct ardma_bar *bar);
int ardma_bus_watch(struct ardma_adaptor *adaptor);
void ardma_bus_unwatch(struct ardma_adaptor *adaptor);

/* export.c: windows. */
int ardma_export(struct ardma_file *file, struct ardma_export *argument);
int ardma_export_bar(struct ardma_file *file, struct ardma_export_bar *argument);
int ardma_export_key(struct ardma_file *file, struct ardma_export_key *argument);
int ardma_check_shared(struct ardma_adaptor *adaptor);
int ardma_unexport(struct ardma_file *file, u32 space, u64 offset);
int ardma_window_info(struct ardma_file *file, struct ardma_window *window);
int ardma_grants_withdraw(struct ardma_adaptor *adaptor, struct ardma_file *file);
void ardma_grants_lost(struct ardma_adaptor *adaptor);
void ardma_grants_function_gone(struct ardma_adaptor *adaptor, struct pci_dev *function);
void ardma_grants_forget(struct ardma_adaptor *adaptor);

/* registration.c: memory that the engine reaches. */
int ardma_register(struct ardma_file *file, struct ardma_register *argument);
int ardma_deregister(struct ardma_file *file, u32 key);
struct ardma_registration *ardma_registration_find(struct ardma_file *file, u32 key);
int ardma_registrations_withdraw(struct ardma_adaptor *adaptor, struct ardma_file *file);
void ardma_registrations_lost(struct ardma_adaptor *adaptor);
void ardma_registrations_forget(struct ardma_adaptor *adaptor);

/* queue.c: queues of the engine, and their doorbell pages. */
int ardma_create_queue(struct ardma_file *file, struct ardma_create_queue *argument);
int ardma_destroy_queue(struct ardma_file *file, u64 doorbell);
void ardma_queues_create(struct ardma_adaptor *adaptor);
int ardma_queues_withdraw(struct ardma_adaptor *adaptor, struct ardma_file *file);
void ardma_queues_wake(struct ardma_adaptor *adaptor);
void ardma_queues_lost(struct ardma_adaptor *adaptor);
void ardma_queues_forget(struct ardma_adaptor *adaptor);
void ardma_queues_ready(struct ardma_adaptor *adaptor);
irqreturn_t ardma_queue_interrupt(int irq, void *data);
int ardma_doorbell_mmap(struct ardma_file *file, struct vm_area_struct *vma);

/* assurance.c: ranges, failed blocks, where the spaces lie. */
int ardma_range(struct ardma_adaptor *adaptor, struct ardma_range *range);
int ardma_failed(struct ardma_file *file, struct ardma_failed *argument);
void ardma_failed_forget(struct ardma_adaptor *adaptor);
int ardma_spaces(struct ardma_adaptor *adaptor, struct ardma_spaces *spaces);

/* inventory.c: what nodes export. */
int ardma_inventory(struct ardma_adaptor *adaptor, struct ardma_inventory *argument);

/* messages.c: messages of other nodes. */
int ardma_listen(struct ardma_file *file, const struct ardma_listen *argument);
irqreturn_t ardma_message_interrupt(int irq, void *data);
void ardma_messages_create(struct ardma_adaptor *adaptor);
void ardma_messages_lost(struct ardma_adaptor *adaptor);
void ardma_messages_withdraw(struct ardma_adaptor *adaptor);

/* file.c: the character device. */
extern const struct file_operations ardma_file_operations;
void ardma_zap_mappings(struct ardma_adaptor *adaptor);

/* ioctl.c */
long ardma_ioctl(struct file *file, unsigned int number, unsigned long argument);

#endif /* ARDMA_DRIVER_H */
