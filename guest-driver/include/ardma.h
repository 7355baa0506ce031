/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The DMA engine of an assured-rdma adaptor, for programs in C. Link with libardma_c.a or libardma_c.so, which
 * `cargo build --release -p ardma-c` makes. A whole program:
 *
 *   ardma_device *device = ardma_open("/dev/ardma0");
 *   ardma_region *region = ardma_register(device, memory, length, ARDMA_READABLE | ARDMA_WRITABLE);
 *   ardma_queue *queue = ardma_connect(device, 256);
 *   struct ardma_completion done;
 *
 *   if (ardma_write(queue, region, 0, 4096, 2, 0x1000, 7) ||
 *       ardma_wait(queue, &done, 1000) != 1)
 *           fprintf(stderr, "%s\n", ardma_error());
 *   else if (done.status)
 *           fprintf(stderr, "%s\n", ardma_explain(done.status, text, sizeof(text)));
 *
 *   ardma_disconnect(queue);
 *   ardma_deregister(region);
 *   ardma_close(device);
 *
 * Functions that make something return NULL where they fail, others a negative errno; ardma_error() then says in
 * words what was wrong, for this thread. A child that fork() made has none of its parent's handles: functions
 * that use one fail there with -ECHILD (or NULL), those that give one back end nothing of the parent's, and
 * the child opens the device itself. Handles of different devices may be used by different threads at the same
 * time, a queue by one thread at a time.
 */
#ifndef ARDMA_H
#define ARDMA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ardma_device ardma_device;
typedef struct ardma_region ardma_region;
typedef struct ardma_grant ardma_grant;
typedef struct ardma_queue ardma_queue;

/* What the engine of this node may do with a region. */
#define ARDMA_READABLE	1U	/* read it: what is sent */
#define ARDMA_WRITABLE	2U	/* write it: what is fetched, and what other nodes write */

/* What other nodes may do with a region. */
#define ARDMA_GRANT_READ	1U
#define ARDMA_GRANT_WRITE	2U
#define ARDMA_GRANT_ATOMIC	16U
#define ARDMA_GRANT_BEYOND	32U	/* it may lie beyond the window size, where only engines reach it */

/* The adaptor chooses the offset. */
#define ARDMA_ANYWHERE	UINT64_MAX

/* Bytes that ardma_write_bytes() takes. */
#define ARDMA_INLINE	32

/* How an operation ended. */
struct ardma_completion {
	uint64_t cookie;
	uint64_t bytes;		/* that were moved, counted from the first one */
	uint64_t former;	/* what the memory was before an atomic; with code 0xc7 (PARTIAL) what failed */
	uint32_t status;	/* 0: executed; else see ardma_explain() and the status word of docs/device.md */
	uint32_t reserved;
};

/* What was wrong with this thread's last call that failed; until its next one. */
const char *ardma_error(void);

/* The status in words, cut to what has room; returns text. */
const char *ardma_explain(uint32_t status, char *text, size_t length);

/* A device file, such as /dev/ardma0. It may be closed before what was made of it. */
ardma_device *ardma_open(const char *path);
void ardma_close(ardma_device *device);

/* This node's number. */
int ardma_node(const ardma_device *device);

/*
 * Lets the engine reach memory, of any size and alignment. The memory has to stay mapped until ardma_deregister() has
 * returned 0, or the process ends.
 */
ardma_region *ardma_register(ardma_device *device, void *address, size_t length, unsigned int rights);

/*
 * Takes the memory back: when it returns 0 nothing of it is read or written any more. On -EBUSY the region is exported,
 * and stays; in all other cases the handle is gone.
 */
int ardma_deregister(ardma_region *region);

/*
 * Lets other nodes reach whole pages of a region: the node of each number whose bit is set in nodes (bit n % 64 of word
 * n / 64), or all where it is NULL. *offset is where in this node's window, or ARDMA_ANYWHERE, and becomes what it is.
 */
ardma_grant *ardma_export(ardma_region *region, size_t start, size_t length, unsigned int rights,
			  const uint64_t nodes[4], uint64_t *offset);
int ardma_unexport(ardma_grant *grant);

/* A queue for so many operations under way: a power of two from 4 to 4096. */
ardma_queue *ardma_connect(ardma_device *device, unsigned int entries);

/* Waits for nothing, and takes no completion: what is under way ends, or is dropped. */
void ardma_disconnect(ardma_queue *queue);

/*
 * Operations. Each is posted without a system call, and has one completion, in the order of posting. -EAGAIN where the
 * queue is full until a completion is taken. The memory must not be given back before.
 */
int ardma_write(ardma_queue *queue, ardma_region *region, size_t from, size_t length, unsigned int node,
		uint64_t to, uint64_t cookie);
int ardma_read(ardma_queue *queue, unsigned int node, uint64_t from, ardma_region *region, size_t to,
	       size_t length, uint64_t cookie);
int ardma_write_bytes(ardma_queue *queue, const void *from, size_t length, unsigned int node, uint64_t to,
		      uint64_t cookie);
int ardma_write_message(ardma_queue *queue, ardma_region *region, size_t from, size_t length,
			unsigned int node, uint64_t to, unsigned int doorbell, uint64_t message,
			uint64_t cookie);
int ardma_fetch_add(ardma_queue *queue, unsigned int node, uint64_t at, uint64_t value, uint64_t cookie);
int ardma_compare_swap(ardma_queue *queue, unsigned int node, uint64_t at, uint64_t expected,
		       uint64_t value, uint64_t cookie);
int ardma_fence(ardma_queue *queue, uint64_t cookie);

/* Takes up to max completions that are there: how many. */
int ardma_poll(ardma_queue *queue, struct ardma_completion *completions, unsigned int max);

/* Waits for the next completion, polling first: 1, or 0 after so many milliseconds or where nothing is under way. */
int ardma_wait(ardma_queue *queue, struct ardma_completion *completion, unsigned int milliseconds);

/* How many operations are under way. */
unsigned int ardma_under_way(const ardma_queue *queue);

/* After an operation failed and those behind it were flushed: what is posted from now on is executed again. */
int ardma_resume(ardma_queue *queue);

#ifdef __cplusplus
}
#endif

#endif /* ARDMA_H */
