/* SPDX-License-Identifier: GPL-2.0-only WITH Linux-syscall-note */
/*
 * What programs say to the assured-rdma driver: /dev/ardma0, /dev/ardma1, ..., one for each
 * adaptor.
 *
 * Every structure has the same layout for 32-bit and 64-bit programs. Fields that are marked "zero"
 * are refused with EINVAL where a program gives anything else, and are returned as 0.
 *
 * A window belongs to the open file that exported it: it goes when the file is closed for the last
 * time, so also when its process dies.
 *
 * All who may open the file trust each other: they share the error log, and see each other's windows
 * and failed blocks. What one user may hold is limited (EDQUOT), so that others have something left.
 *
 * Errors that mean the same in every call:
 *   ENODEV      the adaptor was removed; nothing but close() will work on this file
 *   EIO         the adaptor does not answer (its registers read as all-ones), or an earlier command is
 *               not answered yet; a reset may help
 *   ESTALE      the function was disabled, or is another one than it was (as after a migration): what
 *               was made is lost, which ARDMA_EVENT_RESET told. ARDMA_IOC_RESET, or unbinding and
 *               binding the driver, brings it back
 *   ETIMEDOUT   this command was not answered in time. When the answer comes, what it made is taken
 *               back, and what it was to take back is gone; where none comes the adaptor is reset
 *   EINTR       killed while waiting; a command under way ends as with ETIMEDOUT
 *   EACCES      the file is open for reading only, and the call makes or changes something
 *   EDQUOT      more windows, keys, queues or doorbells than one user may hold without
 *               CAP_SYS_RESOURCE (the module's parameter user_share)
 *   ENOTTY      no such call
 *   EINVAL      an argument is not as described, or a "zero" field is not 0
 *   EFAULT      the argument, or memory to export, is not (properly) mapped
 */
#ifndef _UAPI_ASSURED_RDMA_H
#define _UAPI_ASSURED_RDMA_H

#include <linux/ioctl.h>
#include <linux/types.h>

/* Rises when a structure or a meaning below changes. */
#define ARDMA_ABI_VERSION	3

/*
 * The file offset of mmap(): the document's address form. Bit 56 selects the remote I/O space
 * instead of memory, bit 57 the assurance space of either, bit 58 with bit 57 its peek alias. Bits
 * [63:59] are 0, but for the doorbell pages of queues.
 *
 * The access space and the I/O space may be mapped for reading and writing, their assurance spaces
 * for reading only (EACCES). A file that is open for reading only may map just the peek aliases of
 * these (EACCES). A mapping lies in one node's window (ENXIO), is MAP_SHARED and not executable
 * (EINVAL). All are uncached: each load and store reaches the adaptor as it was issued.
 * Use loads and stores of 1, 2, 4 or 8 bytes that are volatile; a load from an assurance space clears
 * what it returns, one from its peek alias does not. Check by loads of 8 bytes: only where bits 63 to 32
 * are ardma_info.session it was this adaptor that answered, and bits 31 to 0 are its status word. A machine
 * may answer loads by 0 where the adaptor was disabled or replaced. Each reset begins another session. After the adaptor's removal an access to a
 * mapping raises SIGBUS.
 */
#define ARDMA_ADDR_IO		(1ULL << 56)
#define ARDMA_ADDR_ASSURANCE	(1ULL << 57)
#define ARDMA_ADDR_PEEK		(1ULL << 58)
#define ARDMA_ADDR_DOORBELL	(1ULL << 59)	/* see ARDMA_IOC_CREATE_QUEUE */
#define ARDMA_ADDR_NODE_SHIFT	48
#define ARDMA_ADDR_NODE_MASK	(0xffULL << ARDMA_ADDR_NODE_SHIFT)
#define ARDMA_ADDR_OFFSET_MASK	((1ULL << ARDMA_ADDR_NODE_SHIFT) - 1)
#define ARDMA_ADDR(node, offset) \
	(((__u64)(node) << ARDMA_ADDR_NODE_SHIFT) | ((__u64)(offset) & ARDMA_ADDR_OFFSET_MASK))

/* Bits of ardma_info.status. */
#define ARDMA_STATUS_READY		(1U << 0)	/* the adaptor is ready */
#define ARDMA_STATUS_MEMORY_SHARED	(1U << 1)	/* known: it shares the guest's memory */
#define ARDMA_STATUS_MEMORY_PRIVATE	(1U << 2)	/* known: it does not */
#define ARDMA_STATUS_DUPLICATE_ID	(1U << 3)	/* another adaptor has this node's id */
#define ARDMA_STATUS_MEMORY_PARTLY	(1U << 4)	/* some memory is not shared, or not known to be */

/* Values of ardma_info.memory: what the driver's own probe of shared memory gave. */
#define ARDMA_MEMORY_UNKNOWN		0	/* the probe could not be made */
#define ARDMA_MEMORY_SHARED		1
#define ARDMA_MEMORY_NOT_SHARED		2	/* ARDMA_IOC_EXPORT gives EOPNOTSUPP */

/* Events; ardma_info.event_counts is indexed by their bit numbers. */
#define ARDMA_EVENT_LINK	(1U << 0)	/* a node's state changed */
#define ARDMA_EVENT_ERROR	(1U << 1)	/* the empty error log filled, or it overflowed */
#define ARDMA_EVENT_ACK		(1U << 2)	/* a program acknowledged an overflow */
#define ARDMA_EVENT_MEMORY	(1U << 3)	/* the memory bits of the status changed */
#define ARDMA_EVENT_RESET	(1U << 4)	/* the adaptor was reset, its windows are lost */
#define ARDMA_EVENT_DUPLICATE	(1U << 5)	/* the duplicate bit of the status changed */
#define ARDMA_EVENT_INVENTORY	(1U << 6)	/* what a node exports changed: see ARDMA_IOC_INVENTORY */
#define ARDMA_EVENT_FAILED	(1U << 7)	/* blocks failed: see ARDMA_IOC_FAILED */

#define ARDMA_EVENT_BITS	8

/*
 * ARDMA_IOC_INFO: the adaptor and this node.
 */
struct ardma_info {
	__u32 abi_version;	/* ARDMA_ABI_VERSION of the driver */
	__u32 device_version;	/* major [31:16], minor [15:0] */
	__u32 status;		/* ARDMA_STATUS_* */
	__u32 memory;		/* ARDMA_MEMORY_* */
	__u32 node;		/* this node's id */
	__u32 node_count;	/* windows in each space: nodes 0 to node_count - 1 */
	__u32 window_bits;	/* log2 of the window size */
	__u32 bus_bits;		/* low bits of a node id that are a bus number */
	__u32 block_bits;	/* log2 of the block size: the grain of errors and checks */
	__u32 error_count;	/* blocks in the error log now */
	__u32 deadline_us;	/* longest time that an access takes */
	__u32 lease_us;		/* the part of it that is kept for the lease */
	__u64 window_size;	/* bytes in each node's window of the access space */
	__u64 incarnation;	/* this life of the node: differs after each reset */
	/* Since the reset: */
	__u64 stores;		/* stores into the access and I/O spaces */
	__u64 loads;		/* loads from the access and I/O spaces */
	__u64 checks;		/* loads from the assurance spaces, peeks too */
	__u64 errors;		/* transactions that did not end with OK */
	__u64 served_writes;	/* other nodes' writes executed here */
	__u64 served_reads;	/* other nodes' reads executed here */
	__u64 refused;		/* other nodes' transactions refused here */
	/* Since the driver took the adaptor: */
	__u64 event_counts[ARDMA_EVENT_BITS];
	__u64 io_window_size;	/* bytes in each node's window of the I/O space */
	__u64 messages_received; /* other nodes' messages taken in, since the reset */
	__u64 message_overflows; /* and refused, because there was no room */
	__u32 session;		/* in bits 63 to 32 of checks of 8 bytes; 0 where the adaptor has none */
	__u32 reserved;		/* zero */
};

/* Bits of ardma_node.state. */
#define ARDMA_NODE_CONFIGURED	(1U << 0)
#define ARDMA_NODE_LINK_UP	(1U << 1)
#define ARDMA_NODE_OVERFLOWED	(1U << 2)	/* errors were lost: see ARDMA_IOC_OVERFLOW_ACK */
#define ARDMA_NODE_SELF		(1U << 3)

/*
 * ARDMA_IOC_NODE: one node as this adaptor sees it. EINVAL beyond node 255.
 */
struct ardma_node {
	__u32 node;		/* in: the node's id, 0 to 255 */
	__u32 state;		/* out: ARDMA_NODE_* */
	__u32 link_changes;	/* out: how often the link went up or down */
	__u32 reserved;		/* zero */
	__u64 incarnation;	/* out: 0 where none was seen */
};

/* The spaces of a node in which a window can be. */
#define ARDMA_SPACE_MEMORY	0
#define ARDMA_SPACE_IO		1	/* a window of 64 KiB; the first page is the adaptor's own */

/* Bits of ardma_export.rights. */
#define ARDMA_RIGHT_READ	(1U << 0)	/* other nodes may read */
#define ARDMA_RIGHT_WRITE	(1U << 1)	/* other nodes may write */
#define ARDMA_RIGHT_ATOMIC	(1U << 4)	/* other nodes may do atomics; not in the I/O space */
/* No right: it may lie beyond the window size, below 2^48, where DMA engines reach it, and accesses do not. */
#define ARDMA_RIGHT_BEYOND	(1U << 5)

/* Bytes in a name: UTF-8 by convention, zeros behind it. All zeros is no name. */
#define ARDMA_NAME_SIZE		24

/* ardma_export.offset: the adaptor chooses. */
#define ARDMA_OFFSET_ANY	(~0ULL)

/*
 * ARDMA_IOC_EXPORT: makes a window of this process's memory, which stays pinned until the window
 * goes. Its offset is one in this node's window of the space that is named.
 *
 *   EINVAL      address, length or offset is not a multiple of the page size; length is 0; it
 *               does not fit into the node's window, or begins in what is the adaptor's own; no right,
 *               an unknown right or space, or no node; other bytes than 0 behind the 0 that ends the name
 *   EFAULT      not mapped, or without the access that the rights need
 *   ENOMEM      more than RLIMIT_MEMLOCK allows, or no memory
 *   ENOSPC      it overlaps another window, or no gap is large enough
 *   ENOBUFS     more windows, or scattered pieces, than the adaptor holds
 *   EOPNOTSUPP  the adaptor does not share the guest's memory (the kernel log says what to do)
 *   ENXIO       the memory is not where the adaptor can reach it
 *   EINTR       killed meanwhile
 */
struct ardma_export {
	__u64 address;		/* in: start of the memory */
	__u64 length;		/* in: bytes */
	__u64 offset;		/* in, or ARDMA_OFFSET_ANY; out: in this node's window */
	__u32 rights;		/* in: ARDMA_RIGHT_* */
	__u32 space;		/* in: ARDMA_SPACE_* */
	__u64 nodes[4];		/* in: who has them: bit n % 64 of word n / 64 */
	__u8 name[ARDMA_NAME_SIZE]; /* in: by which these find it */
};

/*
 * ARDMA_IOC_EXPORT_BAR: makes a window of what is behind a BAR of another PCI function of this
 * machine, so that other nodes reach that device. The function is kept awake (D0) until the window
 * goes, its decoding of memory is enabled, and the window goes when the function is removed. Registers belong into the I/O space: in the
 * other one, stores may be joined.
 *
 * Errors as of ARDMA_IOC_EXPORT, but for:
 *
 *   EPERM       without CAP_SYS_RAWIO, or with the kernel locked down
 *   ENXIO       no such function, or it has no memory there
 *   EINVAL      also: the adaptor itself; not whole pages of the machine's memory map
 */
struct ardma_export_bar {
	__u32 domain;		/* in: the function's PCI domain */
	__u32 function;		/* in: its bus [15:8], device [7:3] and function [2:0] */
	__u32 bar;		/* in: 0 to 5 */
	__u32 rights;		/* in: ARDMA_RIGHT_* */
	__u64 start;		/* in: where in the BAR it begins, in bytes */
	__u64 length;		/* in: bytes, or 0 for all from there on; out: bytes */
	__u64 offset;		/* in, or ARDMA_OFFSET_ANY; out: in this node's window */
	__u32 space;		/* in: ARDMA_SPACE_* */
	__u32 reserved;		/* zero */
	__u64 nodes[4];		/* in: who has them: bit n % 64 of word n / 64 */
	__u8 name[ARDMA_NAME_SIZE]; /* in: by which these find it */
};

/*
 * ARDMA_IOC_UNEXPORT: removes a window of this file. When it returns 0 nothing more lands there.
 *
 *   ENOENT      no window of this file begins at this offset of this space
 *   ESTALE      it had already been lost, by a reset of the adaptor or with the function that it was
 *               of; now it is forgotten
 */
struct ardma_unexport {
	__u64 offset;		/* in: as ARDMA_IOC_EXPORT gave it */
	__u32 space;		/* in: as ARDMA_IOC_EXPORT took it */
	__u32 reserved;		/* zero */
};

/* Bits of ardma_window.flags. */
#define ARDMA_WINDOW_MINE	(1U << 0)	/* of this open file */
#define ARDMA_WINDOW_LOST	(1U << 1)	/* by a reset, or with its function; kept until the owner removes it */
#define ARDMA_WINDOW_ORPHAN	(1U << 2)	/* file closed, but the adaptor did not let go */
#define ARDMA_WINDOW_IO		(1U << 3)	/* in the I/O space */
#define ARDMA_WINDOW_BAR	(1U << 4)	/* of another PCI function */
#define ARDMA_WINDOW_KEY	(1U << 5)	/* of registered memory */

/*
 * ARDMA_IOC_WINDOW: the windows of all files of this adaptor, one by one. ENOENT past the end.
 */
struct ardma_window {
	__u32 index;		/* in: 0, 1, ... in the order of export */
	__u32 rights;		/* out: ARDMA_RIGHT_* */
	__u64 offset;		/* out: in this node's window */
	__u64 length;		/* out: bytes */
	__u64 nodes[4];		/* out: as in struct ardma_export */
	__u32 owner;		/* out: process that made it; 0 where it is not visible from here */
	__u32 flags;		/* out: ARDMA_WINDOW_* */
};

/* Values of ardma_inventory.kind; a node may have others. */
#define ARDMA_KIND_NONE			0	/* there is no such entry */
#define ARDMA_KIND_BUS			1	/* the node itself: its length is that of its window */
#define ARDMA_KIND_MEMORY		2	/* a window of its guest's memory */
#define ARDMA_KIND_BUS_WINDOW		3	/* a window of other devices of its guest */
#define ARDMA_KIND_MEMORY_DEVICE	4	/* a memory device that its adaptor hosts */
#define ARDMA_KIND_IO_DEVICE		5	/* an I/O device that its adaptor hosts */

/*
 * ARDMA_IOC_INVENTORY: what a node exports to this one, one by one; of this node itself, all that it
 * exports. Entry 0 is the node, where it was ever reached. Behind the last entry the kind is
 * ARDMA_KIND_NONE. A list was read whole if count and version are the same in all answers.
 * ARDMA_EVENT_INVENTORY says when some node's list may be another one.
 *
 * All of it is what the other node says: it may be wrong, and the rights are kept by that node.
 *
 *   EINVAL      beyond node 255, or beyond entry 2^24 - 1
 *   EAGAIN      the list kept changing meanwhile
 *   EOPNOTSUPP  the adaptor is older than its version 1.1
 */
struct ardma_inventory {
	__u32 node;		/* in: the node's id, 0 to 255 */
	__u32 index;		/* in: 0, 1, ... */
	__u32 count;		/* out: entries in all */
	__u32 version;		/* out: of the list */
	__u32 kind;		/* out: ARDMA_KIND_* */
	__u32 rights;		/* out: ARDMA_RIGHT_* */
	__u32 space;		/* out: ARDMA_SPACE_* */
	__u32 reserved;		/* zero */
	__u64 offset;		/* out: in that node's window of the space */
	__u64 length;		/* out: bytes */
	__u8 name[ARDMA_NAME_SIZE]; /* out */
};

/*
 * ARDMA_IOC_OVERFLOW_ACK: it is known that any earlier access to the node may have failed; checks no
 * longer answer LOG_OVERFLOW for it, whichever program makes them. All programs are told by
 * ARDMA_EVENT_ACK. EINVAL beyond node 255.
 */
struct ardma_overflow_ack {
	__u32 node;		/* in */
	__u32 reserved;		/* zero */
};

/*
 * ARDMA_IOC_EVENTS: events since this file was opened or last asked; it never waits. While there
 * are some poll() gives POLLIN, with POLLPRI where ARDMA_EVENT_ERROR, ARDMA_EVENT_FAILED,
 * ARDMA_EVENT_ACK or ARDMA_EVENT_RESET is among them. Once the adaptor is removed poll() gives POLLHUP and POLLERR.
 *
 * A reset drops stores that were not sent, and errors that were not checked: a check that returns 0
 * answers for the accesses since the last reset only. ARDMA_EVENT_RESET is there before the first
 * access after the reset is possible, so a program that asks for events after a check knows
 * whether there was one in between. The same holds for ARDMA_EVENT_ACK, which is there before the
 * overflow is acknowledged: checks after it do not tell of errors before it that found no room.
 */
struct ardma_events {
	__u32 events;		/* out: ARDMA_EVENT_* */
	__u32 reserved;		/* out: 0 */
};

/*
 * The next four calls give EOPNOTSUPP where the adaptor is older than its version 1.1.
 *
 * ARDMA_IOC_RANGE: whether any access from the byte at first up to and including the one at last
 * failed, without a check of each block. Both are addresses as for mmap(), with ARDMA_ADDR_IO in
 * both or in neither; the nodes may differ. Waits, as a check does, for the accesses that were made
 * before, and clears nothing. ENXIO where no byte of the range is in any node's window.
 */
struct ardma_range {
	__u64 first;		/* in */
	__u64 last;		/* in */
	__u32 status;		/* out: a status word: the first error of each direction */
	__u32 reserved;		/* zero */
};

/*
 * ARDMA_IOC_FAILED: the next block with errors that this open file was not told of. ENOENT where
 * there is none now; ARDMA_EVENT_FAILED says when to ask again. It waits for no block to fail, but
 * for the accesses under way on those that it looks at.
 *
 * Each open file is told of each failed block of the adaptor once, by whichever program the
 * accesses were made, and again when it fails after a check of it. A file that was just opened is
 * told of all blocks that have errors. Nobody is told of a block whose errors are checked by then.
 * Where a node's errors overflowed, blocks are missing: see ARDMA_NODE_OVERFLOWED.
 */
struct ardma_failed {
	__u64 address;		/* out: the block's first byte, as for mmap() */
	__u32 status;		/* out: what a check of it would answer; it is not cleared */
	__u32 reserved;		/* out: 0 */
};

/*
 * ARDMA_IOC_SPACES: where the adaptor's spaces lie on its bus, as the adaptor itself knows it, and
 * how many bytes they have. A base is 0 where the adaptor does not know.
 */
struct ardma_spaces {
	__u64 register_base;
	__u64 register_extent;
	__u64 io_base;
	__u64 io_extent;
	__u64 access_base;
	__u64 access_extent;
	__u64 assurance_base;
	__u64 assurance_extent;
};

/* Bits of ardma_listen.flags. */
#define ARDMA_LISTEN_MASKED	(1U << 0)	/* as after ARDMA_IOC_MASK with all doorbells */

/*
 * ARDMA_IOC_LISTEN: opens doorbells of this node. The call returns a new file descriptor (read-only,
 * close-on-exec), from which the messages that other nodes store to these doorbells are read. They are
 * closed again when it is closed for the last time, or the adaptor is reset. A doorbell to which nobody
 * listens refuses messages (access denied).
 *
 * read() gives whole messages, as many as there are and have room, in the order in which they came;
 * it waits for the first one unless the file is O_NONBLOCK. poll() gives POLLIN while there are some.
 * A program that does not read them is no burden to others: when many wait for it, its doorbells refuse
 * more (no resources), and the senders know.
 *
 *   EINVAL  no doorbell, no node or an unknown flag; read(): less than one message has room
 *   EBUSY   somebody else listens to one of the doorbells
 *   EMFILE  and what else a new file descriptor may meet
 *   EAGAIN  read(): there is none, and the file is O_NONBLOCK
 *   ESTALE  read(): the adaptor was reset, or the guest slept: there will be no more messages, and some
 *           that their senders know to be delivered may be lost; listen again (poll() gives POLLERR)
 */
struct ardma_listen {
	__u64 doorbells;	/* in: bit n for doorbell n */
	__u64 nodes[4];		/* in: who may ring: bit n % 64 of word n / 64 */
	__u32 flags;		/* in: ARDMA_LISTEN_* */
	__u32 reserved;		/* zero */
};

/* What read() gives. */
struct ardma_message {
	__u64 data;		/* one of 4 bytes has zeros above */
	__u32 node;		/* who sent it */
	__u32 doorbell;
	__u32 size;		/* in bytes: 4 or 8 */
	__u32 reserved;		/* 0 */
};

/*
 * ARDMA_IOC_MASK, on the file of ARDMA_IOC_LISTEN: messages of masked doorbells raise no interrupt. They
 * wait until read() asks for them, the doorbells are unmasked, or the driver comes for others. EINVAL
 * for other doorbells than the file's.
 */
struct ardma_mask {
	__u64 doorbells;	/* in: which */
	__u32 masked;		/* in: 1 to mask, 0 to unmask */
	__u32 reserved;		/* zero */
};

/*
 * The DMA engine. A program registers memory, which the adaptor then reaches, and makes queues: rings in
 * that memory, to which it posts operations without a call (docs/device.md has their layout). All that
 * an open file registers and makes is one domain: its queues can name its own memory only. It goes
 * with the file, queues first, and the memory is given back when the adaptor has let go of it. After
 * a reset of the adaptor nothing of it is left: see ARDMA_EVENT_RESET.
 *
 * These calls give EOPNOTSUPP where the adaptor has no engine, or does not share the guest's memory.
 */

/* Bits of ardma_register.rights. */
#define ARDMA_LOCAL_READ	(1U << 0)	/* the engine may read it: what is sent */
#define ARDMA_LOCAL_WRITE	(1U << 1)	/* the engine may write it: what is fetched, and rings */

/*
 * ARDMA_IOC_REGISTER: pins memory of this process, of any size, and lets the adaptor reach it. The
 * pages that hold the range are registered as a whole.
 *
 *   EINVAL      length is 0, no right, or an unknown one
 *   EFAULT      not mapped, or without the access that the rights need
 *   ENOMEM      more than RLIMIT_MEMLOCK allows, or no memory
 *   ENOBUFS     more keys, or scattered pieces, than the adaptor holds
 *   ENXIO       the memory is not where the adaptor can reach it
 *   EINTR       killed meanwhile
 */
struct ardma_register {
	__u64 address;		/* in: start of the memory */
	__u64 length;		/* in: bytes */
	__u64 offset;		/* out: of the memory's first byte behind the key: address modulo the page size */
	__u32 rights;		/* in: ARDMA_LOCAL_* */
	__u32 key;		/* out: never 0 */
};

/*
 * ARDMA_IOC_DEREGISTER: when it returns 0 nothing of the memory is read or written any more. It waits
 * for operations under way; those that come after end with BAD_KEY.
 *
 *   ENOENT      no such key of this file
 *   EBUSY       a queue has its rings there, or it is exported
 *   ESTALE      it had already been lost by a reset of the adaptor; now it is forgotten
 */
struct ardma_deregister {
	__u32 key;		/* in */
	__u32 reserved;		/* zero */
};

/* ardma_create_queue.eventfd: none. */
#define ARDMA_NO_EVENTFD	(~0U)

/*
 * ARDMA_IOC_CREATE_QUEUE: a submission ring of 64 bytes and a completion ring of 32 bytes an entry, in
 * registered memory that the engine may read and write. The 64 bytes before the completion ring are its
 * head. All of it is to be zero.
 *
 * The file offset that is returned maps the doorbell page of this queue, PAGE_SIZE bytes and no other
 * queue's, MAP_SHARED. Once the queue is gone stores to a mapping of it do nothing. The eventfd is
 * signalled when an armed completion is there, and when the queue is lost by a reset.
 *
 *   ENOENT      no such key of this file
 *   EINVAL      a ring is misaligned, or is not inside the memory; a bad number of entries
 *   EBADF       eventfd is no file; EINVAL: it is another kind of file
 *   ENOBUFS     the adaptor has no queue left
 *   ESTALE      the key was lost by a reset of the adaptor
 */
struct ardma_create_queue {
	__u64 submission;	/* in: offset behind the key, a multiple of 64 */
	__u64 completion;	/* in: the same, at least 64 */
	__u32 key;		/* in */
	__u32 entries_log2;	/* in: of both rings: 2 to 12 */
	__u32 coalesce_count;	/* in: raise an interrupt for so many completions; 0 or 1: for each */
	__u32 coalesce_us;	/* in: and when the first of them is so old */
	__u32 eventfd;		/* in: a file descriptor, or ARDMA_NO_EVENTFD */
	__u32 queue;		/* out: its number */
	__u64 doorbell;		/* out: offset for mmap() */
};

/*
 * ARDMA_IOC_DESTROY_QUEUE: when it returns 0 nothing of the queue is under way, and nothing is written to
 * its rings any more.
 *
 *   ENOENT      no such queue of this file
 *   ESTALE      it had already been lost by a reset of the adaptor; now it is forgotten
 */
struct ardma_destroy_queue {
	__u64 doorbell;		/* in: as ARDMA_IOC_CREATE_QUEUE gave it */
};

/*
 * ARDMA_IOC_EXPORT_KEY: makes a window of registered memory, in the memory space. It ends by
 * ARDMA_IOC_UNEXPORT. Errors as of ARDMA_IOC_EXPORT, but for:
 *
 *   ENOENT      no such key of this file
 *   EACCES      other nodes would get to write what was registered to be read only
 *   ESTALE      the key was lost by a reset of the adaptor
 */
struct ardma_export_key {
	__u32 key;		/* in */
	__u32 rights;		/* in: ARDMA_RIGHT_* */
	__u64 start;		/* in: offset behind the key, a multiple of the page size */
	__u64 length;		/* in: bytes, a multiple of the page size */
	__u64 offset;		/* in, or ARDMA_OFFSET_ANY; out: in this node's window */
	__u64 nodes[4];		/* in: who has them: bit n % 64 of word n / 64 */
	__u8 name[ARDMA_NAME_SIZE]; /* in: by which these find it */
	__u64 reserved;		/* zero */
};

#define ARDMA_IOC_MAGIC		0xe9

#define ARDMA_IOC_INFO		_IOR(ARDMA_IOC_MAGIC, 0x00, struct ardma_info)
#define ARDMA_IOC_NODE		_IOWR(ARDMA_IOC_MAGIC, 0x01, struct ardma_node)
#define ARDMA_IOC_EXPORT	_IOWR(ARDMA_IOC_MAGIC, 0x02, struct ardma_export)
#define ARDMA_IOC_UNEXPORT	_IOW(ARDMA_IOC_MAGIC, 0x03, struct ardma_unexport)
#define ARDMA_IOC_WINDOW	_IOWR(ARDMA_IOC_MAGIC, 0x04, struct ardma_window)
#define ARDMA_IOC_OVERFLOW_ACK	_IOW(ARDMA_IOC_MAGIC, 0x05, struct ardma_overflow_ack)
#define ARDMA_IOC_EVENTS	_IOR(ARDMA_IOC_MAGIC, 0x06, struct ardma_events)
/* Resets the function (FLR); all windows of all files are lost. EPERM without CAP_SYS_ADMIN. */
#define ARDMA_IOC_RESET		_IO(ARDMA_IOC_MAGIC, 0x07)
#define ARDMA_IOC_EXPORT_BAR	_IOWR(ARDMA_IOC_MAGIC, 0x08, struct ardma_export_bar)
#define ARDMA_IOC_INVENTORY	_IOWR(ARDMA_IOC_MAGIC, 0x09, struct ardma_inventory)
#define ARDMA_IOC_LISTEN	_IOW(ARDMA_IOC_MAGIC, 0x10, struct ardma_listen)
#define ARDMA_IOC_MASK		_IOW(ARDMA_IOC_MAGIC, 0x11, struct ardma_mask)
#define ARDMA_IOC_RANGE		_IOWR(ARDMA_IOC_MAGIC, 0x20, struct ardma_range)
#define ARDMA_IOC_FAILED	_IOR(ARDMA_IOC_MAGIC, 0x21, struct ardma_failed)
#define ARDMA_IOC_SPACES	_IOR(ARDMA_IOC_MAGIC, 0x22, struct ardma_spaces)
#define ARDMA_IOC_REGISTER	_IOWR(ARDMA_IOC_MAGIC, 0x30, struct ardma_register)
#define ARDMA_IOC_DEREGISTER	_IOW(ARDMA_IOC_MAGIC, 0x31, struct ardma_deregister)
#define ARDMA_IOC_CREATE_QUEUE	_IOWR(ARDMA_IOC_MAGIC, 0x32, struct ardma_create_queue)
#define ARDMA_IOC_DESTROY_QUEUE	_IOW(ARDMA_IOC_MAGIC, 0x33, struct ardma_destroy_queue)
#define ARDMA_IOC_EXPORT_KEY	_IOWR(ARDMA_IOC_MAGIC, 0x34, struct ardma_export_key)

#endif /* _UAPI_ASSURED_RDMA_H */
