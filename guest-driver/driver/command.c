// SPDX-License-Identifier: GPL-2.0-only
/*
 * The command mailbox: one descriptor, one command at a time. While the answer to a command is
 * missing the mailbox is not used, since the adaptor may still read it: the answer is looked for
 * before the next command, and by settle_work, which resets the function where none comes.
 */
#include <linux/jiffies.h>
#include <linux/mm.h>
#include <linux/moduleparam.h>
#include <linux/nodemask.h>
#include <linux/random.h>
#include <linux/sched/signal.h>
#include <linux/workqueue.h>

#include "driver.h"

/* Between two looks at COMMAND_STATUS, should the event not come. */
#define ARDMA_COMMAND_POLL_MS	20
/* How long an answer may be missing before the function is reset. All that it waits for ends earlier. */
#define ARDMA_LATE_MS		5000

static unsigned int command_timeout_ms = 10000;
module_param(command_timeout_ms, uint, 0644);
MODULE_PARM_DESC(command_timeout_ms, "longest time that a command may take, in milliseconds");

struct ardma_descriptor {
	__le32 magic;
	__le32 cookie;
	__le32 opcode;
	__le32 zero0;
	__le64 offset;
	__le64 length;
	__le32 rights;				/* and ARDMA_CMD_FLAG_* */
	__le32 run_count;
	__le64 list;
	__le32 domain;
	__le32 key;
	__le64 zero1;
	__le64 nodes[4];
	u8 name[ARDMA_NAME_SIZE];
	__le64 proof;
};

static_assert(sizeof(struct ardma_descriptor) == ARDMA_DESCRIPTOR_SIZE);
static_assert(offsetof(struct ardma_descriptor, list) == 0x28);
static_assert(offsetof(struct ardma_descriptor, domain) == 0x30);
static_assert(offsetof(struct ardma_descriptor, nodes) == 0x40);
static_assert(offsetof(struct ardma_descriptor, name) == 0x60);
static_assert(offsetof(struct ardma_descriptor, proof) == 0x78);

int ardma_mailbox_create(struct ardma_adaptor *adaptor)
{
	return ardma_page_create(adaptor, &adaptor->mailbox);
}

void ardma_mailbox_destroy(struct ardma_adaptor *adaptor)
{
	bool keep = adaptor->late.opcode || adaptor->health != ARDMA_WELL;

	if (keep)
		dev_warn(&adaptor->pdev->dev,
			 "the command mailbox is not freed: the adaptor may still read it\n");
	ardma_page_destroy(adaptor, &adaptor->mailbox, keep);
}

/* Notes what is known of shared memory, and tells the operator when it turns out not to be. */
static void ardma_set_memory(struct ardma_adaptor *adaptor, u32 memory)
{
	if (memory == ARDMA_MEMORY_NOT_SHARED && adaptor->memory != memory)
		dev_warn(&adaptor->pdev->dev,
			 "QEMU does not share this guest's memory with the adaptor: exports are refused. Start QEMU with -object memory-backend-memfd,id=ram,size=...,share=on -machine memory-backend=ram\n");
	WRITE_ONCE(adaptor->memory, memory);
}

static int ardma_command_errno(struct ardma_adaptor *adaptor, u32 opcode, u32 status)
{
	switch (status) {
	case ARDMA_CMD_STATUS_OK:
		return 0;
	case ARDMA_CMD_STATUS_BAD_OPCODE:
		return -EOPNOTSUPP;
	case ARDMA_CMD_STATUS_NOT_SHARED:
		/*
		 * Of a list or a run it says nothing about the memory that the driver itself uses.
		 * A probe knows itself which memory it was about.
		 */
		if (opcode != ARDMA_CMD_PROBE &&
		    ardma_read32(adaptor, ARDMA_REG_STATUS) & ARDMA_STATUS_MEMORY_PRIVATE)
			ardma_set_memory(adaptor, ARDMA_MEMORY_NOT_SHARED);
		return -EOPNOTSUPP;
	case ARDMA_CMD_STATUS_MEMORY_FAULT:
		return -ENXIO;
	case ARDMA_CMD_STATUS_BAD_ARGUMENT:
		return -EINVAL;
	case ARDMA_CMD_STATUS_NO_SPACE:
		return -ENOSPC;
	case ARDMA_CMD_STATUS_TOO_MANY:
		return -ENOBUFS;
	case ARDMA_CMD_STATUS_NOT_FOUND:
		return -ENOENT;
	case ARDMA_CMD_STATUS_IN_USE:
		return -EBUSY;
	default:
		dev_err(&adaptor->pdev->dev, "command %u: the adaptor answered status %u\n", opcode,
			status);
		return -EPROTO;
	}
}

/* Whether it is what the command may return. */
static bool ardma_command_result_is_valid(struct ardma_adaptor *adaptor, u32 opcode, u64 result)
{
	switch (opcode) {
	case ARDMA_CMD_EXPORT:
		return IS_ALIGNED(result, ARDMA_MEMORY_GRAIN);
	case ARDMA_CMD_REGISTER:
		return result && result <= U32_MAX;
	case ARDMA_CMD_CREATE_QUEUE:
		return result < adaptor->node_count * ARDMA_QUEUES_PER_NODE;
	default:
		return true;
	}
}

/* The command was answered. Its end is not called where the adaptor went away meanwhile. */
static int ardma_command_finish(struct ardma_adaptor *adaptor, u32 opcode, u32 status,
				ardma_command_end end, void *object)
{
	u64 result = ardma_read64(adaptor, ARDMA_REG_COMMAND_RESULT);
	int ret;

	/* Last, as what was read before is worth nothing where this is not right. */
	ret = ardma_verify(adaptor);
	if (ret)
		return ret;
	ret = ardma_command_errno(adaptor, opcode, status);
	if (!ret && !ardma_command_result_is_valid(adaptor, opcode, result)) {
		dev_err(&adaptor->pdev->dev, "command %u: the adaptor returned 0x%llx\n", opcode,
			result);
		WRITE_ONCE(adaptor->health, ARDMA_SILENT);
		return -EIO;
	}
	/* What the adaptor wrote into memory is read after its status. */
	dma_rmb();
	end(adaptor, object, ret, result);
	return ret;
}

/* Looks for the answer that is missing, if one is. */
void ardma_command_reap(struct ardma_adaptor *adaptor)
{
	u32 opcode = adaptor->late.opcode;
	u32 status;

	lockdep_assert_held(&adaptor->gate);
	lockdep_assert_held(&adaptor->command_lock);

	if (!opcode || READ_ONCE(adaptor->health) != ARDMA_WELL)
		return;
	status = ardma_read32(adaptor, ARDMA_REG_COMMAND_STATUS);
	if (status == ARDMA_CMD_STATUS_BUSY || ardma_verify(adaptor))
		return;
	adaptor->late.opcode = 0;
	ardma_command_finish(adaptor, opcode, status, adaptor->late.end, adaptor->late.object);
}

/* For who gives commands: gate and command_lock, killably. The answer that is missing may be there. */
int ardma_command_enter(struct ardma_adaptor *adaptor)
{
	int ret = ardma_enter_locked(adaptor, &adaptor->command_lock);

	if (!ret)
		ardma_command_reap(adaptor);
	return ret;
}

void ardma_command_leave(struct ardma_adaptor *adaptor)
{
	ardma_leave_locked(adaptor, &adaptor->command_lock);
}

/* The same for what has to be done also when the process is being killed. */
int ardma_command_enter_always(struct ardma_adaptor *adaptor)
{
	int ret = ardma_enter_always(adaptor);

	if (ret)
		return ret;
	mutex_lock(&adaptor->command_lock);
	ardma_command_reap(adaptor);
	return 0;
}

/* A process that is being killed does not wait, unless it is in the middle of its exit. */
static bool ardma_killed(void)
{
	return !(current->flags & (PF_EXITING | PF_KTHREAD)) && fatal_signal_pending(current);
}

/* From now on the mailbox waits for the answer, and with it what may be done with the object. */
static void ardma_command_is_late(struct ardma_adaptor *adaptor, u32 opcode, ardma_command_end end,
				  void *object)
{
	adaptor->late.end = end;
	adaptor->late.object = object;
	adaptor->late.deadline = jiffies + msecs_to_jiffies(ARDMA_LATE_MS);
	adaptor->late.opcode = opcode;
	mod_delayed_work(system_long_wq, &adaptor->settle_work,
			 msecs_to_jiffies(ARDMA_COMMAND_POLL_MS));
}

/*
 * Starts the command in the mailbox, which is prepared, and waits for its answer. Where none comes
 * (-ETIMEDOUT, -EINTR, -EIO, -ESTALE) the end is not called now: it is open what the adaptor does.
 */
static int ardma_command_run(struct ardma_adaptor *adaptor, u32 opcode, u32 cookie,
			     ardma_command_end end, void *object)
{
	struct ardma_descriptor *descriptor = adaptor->mailbox.contents;
	unsigned long deadline = jiffies + msecs_to_jiffies(command_timeout_ms);
	u32 status;

	lockdep_assert_held(&adaptor->gate);
	lockdep_assert_held(&adaptor->command_lock);

	descriptor->magic = cpu_to_le32(ARDMA_DESCRIPTOR_MAGIC);
	descriptor->cookie = cpu_to_le32(cookie);
	descriptor->opcode = cpu_to_le32(opcode);
	ardma_page_to_device(adaptor, &adaptor->mailbox);

	reinit_completion(&adaptor->command_done);
	ardma_write64(adaptor, ARDMA_REG_COMMAND_ADDRESS, adaptor->mailbox.bus);
	ardma_write32(adaptor, ARDMA_REG_COMMAND_COOKIE, cookie);
	/* Orders the descriptor before the start, as every writel() does. */
	ardma_write32(adaptor, ARDMA_REG_COMMAND, opcode);

	for (;;) {
		bool late = time_after(jiffies, deadline);
		bool killed = ardma_killed();

		status = ardma_read32(adaptor, ARDMA_REG_COMMAND_STATUS);
		if (status != ARDMA_CMD_STATUS_BUSY)
			return ardma_command_finish(adaptor, opcode, status, end, object);
		if (late || killed) {
			ardma_command_is_late(adaptor, opcode, end, object);
			if (killed)
				return -EINTR;
			dev_err(&adaptor->pdev->dev, "command %u timed out (%u ms)\n", opcode,
				command_timeout_ms);
			return -ETIMEDOUT;
		}
		/* The completion may be an earlier command's: then this only looks once more. */
		wait_for_completion_timeout(&adaptor->command_done,
					    msecs_to_jiffies(ARDMA_COMMAND_POLL_MS));
	}
}

/* The mailbox for a new command, all zero; or an error where it may not be touched. */
static struct ardma_descriptor *ardma_command_prepare(struct ardma_adaptor *adaptor)
{
	int ret = ardma_health_errno(adaptor);

	if (!ret && adaptor->late.opcode)
		ret = -EIO;
	if (ret)
		return ERR_PTR(ret);
	return memset(adaptor->mailbox.contents, 0, sizeof(struct ardma_descriptor));
}

static u32 ardma_command_flags(const struct ardma_grant *grant)
{
	return (grant->space == ARDMA_SPACE_IO ? ARDMA_CMD_FLAG_IO : 0) |
	       (grant->of_bar ? ARDMA_CMD_FLAG_BUS : 0);
}

/* Makes the window, at the wanted offset, which may be ARDMA_OFFSET_ANY; the result is its offset. */
int ardma_command_export(struct ardma_adaptor *adaptor, struct ardma_grant *grant, u64 wanted,
			 ardma_command_end end)
{
	struct ardma_descriptor *descriptor = ardma_command_prepare(adaptor);
	int i;

	if (IS_ERR(descriptor)) {
		end(adaptor, grant, PTR_ERR(descriptor), 0);
		return PTR_ERR(descriptor);
	}
	descriptor->offset = cpu_to_le64(wanted);
	descriptor->length = cpu_to_le64(grant->length);
	descriptor->rights = cpu_to_le32(grant->rights | ardma_command_flags(grant));
	descriptor->run_count = cpu_to_le32(grant->list.run_count);
	descriptor->list = cpu_to_le64(ardma_run_list_bus(&grant->list));
	for (i = 0; i < ARRAY_SIZE(grant->nodes); i++)
		descriptor->nodes[i] = cpu_to_le64(grant->nodes[i]);
	memcpy(descriptor->name, grant->name, sizeof(descriptor->name));
	return ardma_command_run(adaptor, ARDMA_CMD_EXPORT, get_random_u32(), end, grant);
}

/* Where it can't be sent the window stays, so its end is not called. */
int ardma_command_unexport(struct ardma_adaptor *adaptor, struct ardma_grant *grant,
			   ardma_command_end end)
{
	struct ardma_descriptor *descriptor = ardma_command_prepare(adaptor);

	if (IS_ERR(descriptor))
		return PTR_ERR(descriptor);
	descriptor->offset = cpu_to_le64(grant->offset);
	descriptor->rights = cpu_to_le32(ardma_command_flags(grant));
	return ardma_command_run(adaptor, ARDMA_CMD_UNEXPORT, get_random_u32(), end, grant);
}

/* The proof, which the adaptor wrote to where this kernel finds it if it sees this memory. */
static void ardma_command_probed(struct ardma_adaptor *adaptor, void *object, int ret, u64 result)
{
	struct ardma_descriptor *descriptor = adaptor->mailbox.contents;
	u32 memory = ARDMA_MEMORY_UNKNOWN;
	u32 cookie;

	ardma_page_to_cpu(adaptor, &adaptor->mailbox);
	cookie = le32_to_cpu(descriptor->cookie);
	/* It may also see a copy that is only its own, or not reach the memory at all. */
	if (!ret && le64_to_cpu(READ_ONCE(descriptor->proof)) == ((u64)cookie << 32 | (u32)~cookie))
		memory = ARDMA_MEMORY_SHARED;
	else if (!ret || ret == -ENXIO || ret == -EOPNOTSUPP)
		memory = ARDMA_MEMORY_NOT_SHARED;
	ardma_set_memory(adaptor, memory);
}

/* Finds out whether the adaptor sees the guest's memory, and keeps the answer. */
int ardma_command_probe(struct ardma_adaptor *adaptor)
{
	struct ardma_descriptor *descriptor = ardma_command_prepare(adaptor);
	int ret;

	if (IS_ERR(descriptor))
		return PTR_ERR(descriptor);
	ret = ardma_command_run(adaptor, ARDMA_CMD_PROBE, get_random_u32(), ardma_command_probed,
				NULL);
	if (ret && ret != -ENXIO)
		return ret;
	return adaptor->memory == ARDMA_MEMORY_SHARED ? 0 : -EOPNOTSUPP;
}

/* What the adaptor has found it keeps. */
static void ardma_command_numa_probed(struct ardma_adaptor *adaptor, void *object, int ret,
				      u64 result)
{
}

/*
 * A guest may have several memories, and the adaptor can't always tell by itself whether they are
 * shared: for each NUMA node a descriptor in its memory shows it. The mailbox's is probed after this,
 * and what that finds is what counts for the driver.
 */
void ardma_command_probe_numa(struct ardma_adaptor *adaptor)
{
	struct ardma_page mailbox = adaptor->mailbox;
	int own = page_to_nid(virt_to_page(mailbox.contents));
	struct ardma_page page;
	int node;

	for_each_node_state(node, N_MEMORY) {
		if (adaptor->late.opcode || ardma_health_errno(adaptor))
			return;
		if (node == own || ardma_page_create_on(adaptor, &page, node))
			continue;
		adaptor->mailbox = page;
		ardma_command_run(adaptor, ARDMA_CMD_PROBE, get_random_u32(),
				  ardma_command_numa_probed, NULL);
		adaptor->mailbox = mailbox;
		/* Where the answer is missing the adaptor may still read it. */
		ardma_page_destroy(adaptor, &page,
				   adaptor->late.opcode || adaptor->health != ARDMA_WELL);
	}
}

/* Has the adaptor hold the memory; the result is its key. */
int ardma_command_register(struct ardma_adaptor *adaptor, struct ardma_registration *registration,
			   ardma_command_end end)
{
	struct ardma_descriptor *descriptor = ardma_command_prepare(adaptor);

	if (IS_ERR(descriptor)) {
		end(adaptor, registration, PTR_ERR(descriptor), 0);
		return PTR_ERR(descriptor);
	}
	descriptor->length = cpu_to_le64(registration->length);
	descriptor->rights = cpu_to_le32(registration->rights);
	descriptor->run_count = cpu_to_le32(registration->list.run_count);
	descriptor->list = cpu_to_le64(ardma_run_list_bus(&registration->list));
	descriptor->domain = cpu_to_le32(registration->domain);
	return ardma_command_run(adaptor, ARDMA_CMD_REGISTER, get_random_u32(), end, registration);
}

/* As ardma_command_unexport(). */
int ardma_command_deregister(struct ardma_adaptor *adaptor, struct ardma_registration *registration,
			     ardma_command_end end)
{
	struct ardma_descriptor *descriptor = ardma_command_prepare(adaptor);

	if (IS_ERR(descriptor))
		return PTR_ERR(descriptor);
	descriptor->domain = cpu_to_le32(registration->domain);
	descriptor->key = cpu_to_le32(registration->key);
	return ardma_command_run(adaptor, ARDMA_CMD_DEREGISTER, get_random_u32(), end,
				 registration);
}

/* Makes a queue; the result is its number. */
int ardma_command_create_queue(struct ardma_adaptor *adaptor, u32 domain,
			       const struct ardma_create_queue *argument, struct ardma_queue *queue,
			       ardma_command_end end)
{
	struct ardma_descriptor *descriptor = ardma_command_prepare(adaptor);

	if (IS_ERR(descriptor)) {
		end(adaptor, queue, PTR_ERR(descriptor), 0);
		return PTR_ERR(descriptor);
	}
	descriptor->offset = cpu_to_le64(argument->submission);
	descriptor->length = cpu_to_le64(argument->completion);
	descriptor->run_count = cpu_to_le32(argument->entries_log2);
	/* Two fields of 32 bits. */
	descriptor->list = cpu_to_le64((u64)argument->coalesce_us << 32 | argument->coalesce_count);
	descriptor->domain = cpu_to_le32(domain);
	descriptor->key = cpu_to_le32(argument->key);
	return ardma_command_run(adaptor, ARDMA_CMD_CREATE_QUEUE, get_random_u32(), end, queue);
}

/* As ardma_command_unexport(). */
int ardma_command_destroy_queue(struct ardma_adaptor *adaptor, u32 number,
				struct ardma_queue *queue, ardma_command_end end)
{
	struct ardma_descriptor *descriptor = ardma_command_prepare(adaptor);

	if (IS_ERR(descriptor))
		return PTR_ERR(descriptor);
	descriptor->offset = cpu_to_le64(number);
	return ardma_command_run(adaptor, ARDMA_CMD_DESTROY_QUEUE, get_random_u32(), end, queue);
}
