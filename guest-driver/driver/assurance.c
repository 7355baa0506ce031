// SPDX-License-Identifier: GPL-2.0-only
/*
 * Assurance beyond the check of a block: questions about ranges, the blocks that failed; and
 * where the spaces lie.
 *
 * The adaptor's queue tells of a failed block once, to whoever takes it out. Here every open file
 * is to be told of it. So blocks that were taken out are kept until their errors are checked, which
 * the adaptor is asked about; each file remembers how far it has come. The adaptor holds no more
 * failed blocks than its log has room for: the list here has as much, and what finds no room in it
 * stays in the queue.
 */
#include <linux/hash.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>

#include "driver.h"

/* Failed blocks that are kept, at most. */
#define ARDMA_FAILED_MAX	4096

/* So many of them are looked at, or taken in, in one go: each look may wait as long as a load. */
#define ARDMA_FAILED_PRUNE	16
#define ARDMA_FAILED_COLLECT	64

#define ARDMA_NOTHING		(~0U)

/* A block of which the adaptor's queue has told. */
struct ardma_failed_block {
	struct hlist_node by_address;
	u64 address;		/* in the form of the uapi header */
	unsigned long sequence;	/* its index in adaptor->failed: rises with each block */
};

static int ardma_assurance_enter(struct ardma_adaptor *adaptor)
{
	return ardma_enter_full(adaptor, &adaptor->assurance_lock);
}

static void ardma_assurance_leave(struct ardma_adaptor *adaptor)
{
	ardma_leave_locked(adaptor, &adaptor->assurance_lock);
}

/* Waits as a load does: until all accesses from first to last that were made before have ended. */
static u32 ardma_range_status(struct ardma_adaptor *adaptor, u64 first, u64 last)
{
	u64 where = ARDMA_ADDR_NODE_MASK | ARDMA_ADDR_OFFSET_MASK;

	lockdep_assert_held(&adaptor->assurance_lock);

	ardma_write64(adaptor, ARDMA_REG_RANGE_START, first & where);
	ardma_write64(adaptor, ARDMA_REG_RANGE_END, (last & where) + 1);
	ardma_write32(adaptor, ARDMA_REG_RANGE_SPACE, first & ARDMA_ADDR_IO ? 1 : 0);
	return ardma_read32(adaptor, ARDMA_REG_RANGE_STATUS);
}

int ardma_range(struct ardma_adaptor *adaptor, struct ardma_range *range)
{
	const u64 known = ARDMA_ADDR_IO | ARDMA_ADDR_NODE_MASK | ARDMA_ADDR_OFFSET_MASK;
	int ret;

	if (((range->first | range->last) & ~known) || range->reserved ||
	    ((range->first ^ range->last) & ARDMA_ADDR_IO) || range->first > range->last)
		return -EINVAL;
	ret = ardma_assurance_enter(adaptor);
	if (ret)
		return ret;
	range->status = ardma_range_status(adaptor, range->first, range->last);
	ret = ardma_verify(adaptor);
	if (!ret && range->status == ARDMA_NOTHING)
		ret = -ENXIO;
	ardma_assurance_leave(adaptor);
	return ret;
}

/* FAILED_BLOCK as the uapi header has addresses. */
static u64 ardma_failed_address(u64 block)
{
	u64 space = block & (ARDMA_MEMORY_GRAIN - 1);

	return (block - space) | (space ? ARDMA_ADDR_IO : 0);
}

static u64 ardma_last_of_block(struct ardma_adaptor *adaptor, u64 address)
{
	return address + (1ULL << adaptor->block_bits) - 1;
}

static struct hlist_head *ardma_failed_bucket(struct ardma_adaptor *adaptor, u64 address)
{
	return &adaptor->failed_blocks[hash_64(address, ARDMA_FAILED_HASH_BITS)];
}

static void ardma_failed_remove(struct ardma_adaptor *adaptor, struct ardma_failed_block *failed)
{
	xa_erase(&adaptor->failed, failed->sequence);
	hlist_del(&failed->by_address);
	adaptor->failed_count--;
	kfree(failed);
}

/* Nobody else looks at the list: the gate is closed, or the last file is. */
void ardma_failed_forget(struct ardma_adaptor *adaptor)
{
	struct ardma_failed_block *failed;
	unsigned long index;

	xa_for_each(&adaptor->failed, index, failed)
		ardma_failed_remove(adaptor, failed);
}

/*
 * Drops blocks whose errors are checked, a few of them, the next ones at the next call. False where
 * there is no room for another one.
 */
static bool ardma_failed_prune(struct ardma_adaptor *adaptor)
{
	unsigned int budget = ARDMA_FAILED_PRUNE;
	struct ardma_failed_block *failed;
	unsigned long index;

	xa_for_each_start(&adaptor->failed, index, failed, adaptor->failed_pruned + 1) {
		if (!budget--)
			break;
		adaptor->failed_pruned = index;
		if (!ardma_range_status(adaptor, failed->address,
					ardma_last_of_block(adaptor, failed->address)))
			ardma_failed_remove(adaptor, failed);
	}
	if (!failed)
		adaptor->failed_pruned = 0;
	return adaptor->failed_count < ARDMA_FAILED_MAX;
}

/* The block has failed; where it is in the list it has done so again, after a check. */
static int ardma_failed_add(struct ardma_adaptor *adaptor, u64 address)
{
	struct hlist_head *bucket = ardma_failed_bucket(adaptor, address);
	struct ardma_failed_block *failed, *known;
	struct hlist_node *next;
	int ret;

	failed = kzalloc(sizeof(*failed), GFP_KERNEL);
	if (!failed)
		return -ENOMEM;
	failed->address = address;
	failed->sequence = adaptor->failed_last + 1;
	ret = xa_insert(&adaptor->failed, failed->sequence, failed, GFP_KERNEL);
	if (ret) {
		kfree(failed);
		return ret;
	}
	adaptor->failed_last = failed->sequence;
	adaptor->failed_count++;
	hlist_for_each_entry_safe(known, next, bucket, by_address)
		if (known->address == address)
			ardma_failed_remove(adaptor, known);
	hlist_add_head(&failed->by_address, bucket);
	return 0;
}

/* Takes out the adaptor's queue, as far as there is room: 0, -EAGAIN where there may be more. */
static int ardma_failed_collect(struct ardma_adaptor *adaptor)
{
	bool pruned = false;
	unsigned int budget;

	for (budget = ARDMA_FAILED_COLLECT; budget; budget--) {
		u64 block;
		int ret;

		if (adaptor->failed_count >= ARDMA_FAILED_MAX) {
			if (pruned || !ardma_failed_prune(adaptor))
				return 0;
			pruned = true;
		}
		block = ardma_read64(adaptor, ARDMA_REG_FAILED_BLOCK);
		/* All-ones also from an adaptor that does not answer. */
		if (block == ~0ULL)
			return 0;
		ret = ardma_failed_add(adaptor, ardma_failed_address(block));
		if (ret)
			return ret;
		ardma_write32(adaptor, ARDMA_REG_FAILED_POP, 1);
	}
	return -EAGAIN;
}

/* One look at the next block that this file has not been told of; -EAGAIN where it has no errors. */
static int ardma_failed_next(struct ardma_file *file, struct ardma_failed *argument)
{
	struct ardma_adaptor *adaptor = file->adaptor;
	unsigned long index = file->failed_seen + 1;
	struct ardma_failed_block *failed;

	failed = xa_find(&adaptor->failed, &index, ULONG_MAX, XA_PRESENT);
	if (!failed)
		return -ENOENT;
	argument->address = failed->address;
	argument->status = ardma_range_status(adaptor, failed->address,
					      ardma_last_of_block(adaptor, failed->address));
	if (argument->status == ARDMA_NOTHING)
		return -EIO;
	file->failed_seen = index;
	if (argument->status)
		return 0;
	ardma_failed_remove(adaptor, failed);
	return -EAGAIN;
}

/*
 * The next block that this file has not been told of and that has errors now. Each look takes the
 * locks anew. The queue is taken in until it is empty, but no more of it than it can hold, since
 * programs may make blocks fail as fast.
 */
int ardma_failed(struct ardma_file *file, struct ardma_failed *argument)
{
	unsigned int collects = ARDMA_FAILED_MAX / ARDMA_FAILED_COLLECT;
	struct ardma_adaptor *adaptor = file->adaptor;
	int ret;

	do {
		ret = ardma_assurance_enter(adaptor);
		if (ret)
			return ret;
		if (collects) {
			collects--;
			ret = ardma_failed_collect(adaptor);
			if (!ret) {
				collects = 0;
				ret = -EAGAIN;
			}
		} else {
			ret = ardma_failed_next(file, argument);
		}
		ret = ardma_verify(adaptor) ?: ret;
		ardma_assurance_leave(adaptor);
		cond_resched();
		if (ret == -EAGAIN && fatal_signal_pending(current))
			ret = -EINTR;
	} while (ret == -EAGAIN);
	return ret;
}

int ardma_spaces(struct ardma_adaptor *adaptor, struct ardma_spaces *spaces)
{
	int ret = ardma_assurance_enter(adaptor);

	if (ret)
		return ret;
	spaces->register_base = ardma_read64(adaptor, ARDMA_REG_REGISTER_BASE);
	spaces->register_extent = ardma_read64(adaptor, ARDMA_REG_REGISTER_EXTENT);
	spaces->io_base = ardma_read64(adaptor, ARDMA_REG_IO_BASE);
	spaces->io_extent = ardma_read64(adaptor, ARDMA_REG_IO_EXTENT);
	spaces->access_base = ardma_read64(adaptor, ARDMA_REG_ACCESS_BASE);
	spaces->access_extent = ardma_read64(adaptor, ARDMA_REG_ACCESS_EXTENT);
	spaces->assurance_base = ardma_read64(adaptor, ARDMA_REG_ASSURANCE_BASE);
	spaces->assurance_extent = ardma_read64(adaptor, ARDMA_REG_ASSURANCE_EXTENT);
	ret = ardma_verify(adaptor);
	ardma_assurance_leave(adaptor);
	return ret;
}
