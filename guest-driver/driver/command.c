// SPDX-License-Identifier: GPL-2.0-only
/*
 * The command mailbox: one descriptor in coherent memory, one command at a time. A command that
 * times out makes the mailbox unusable until the adaptor was reset, since it may still be read.
 */
#include <linux/jiffies.h>
#include <linux/moduleparam.h>
#include <linux/random.h>

#include "driver.h"

/* Between two looks at COMMAND_STATUS, should the event not come. */
#define ARDMA_COMMAND_POLL_MS	20

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
	/* Whole pages, so that it is aligned and shares its page with nothing else. */
	adaptor->mailbox = dma_alloc_coherent(&adaptor->pdev->dev, PAGE_SIZE, &adaptor->mailbox_bus,
					      GFP_KERNEL);
	return adaptor->mailbox ? 0 : -ENOMEM;
}

void ardma_mailbox_destroy(struct ardma_adaptor *adaptor)
{
	if (adaptor->broken)
		dev_warn(&adaptor->pdev->dev,
			 "the command mailbox is not freed: the adaptor may still read it\n");
	else
		dma_free_coherent(&adaptor->pdev->dev, PAGE_SIZE, adaptor->mailbox,
				  adaptor->mailbox_bus);
	adaptor->mailbox = NULL;
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
	default:
		dev_err(&adaptor->pdev->dev, "command %u: the adaptor answered status %u\n", opcode,
			status);
		return -EPROTO;
	}
}

/* Starts the command in the mailbox and waits for its end; fills in what every command has. */
static int ardma_command(struct ardma_adaptor *adaptor, u32 opcode, u32 cookie)
{
	struct ardma_descriptor *descriptor = adaptor->mailbox;
	unsigned long end = jiffies + msecs_to_jiffies(command_timeout_ms);
	u32 status;

	lockdep_assert_held(&adaptor->gate);
	lockdep_assert_held(&adaptor->command_lock);

	descriptor->magic = cpu_to_le32(ARDMA_DESCRIPTOR_MAGIC);
	descriptor->cookie = cpu_to_le32(cookie);
	descriptor->opcode = cpu_to_le32(opcode);

	reinit_completion(&adaptor->command_done);
	ardma_write64(adaptor, ARDMA_REG_COMMAND_ADDRESS, adaptor->mailbox_bus);
	ardma_write32(adaptor, ARDMA_REG_COMMAND_COOKIE, cookie);
	/* Orders the descriptor before the start, as every writel() does. */
	ardma_write32(adaptor, ARDMA_REG_COMMAND, opcode);

	for (;;) {
		bool late = time_after(jiffies, end);

		status = ardma_read32(adaptor, ARDMA_REG_COMMAND_STATUS);
		if (status != ARDMA_CMD_STATUS_BUSY)
			break;
		if (late) {
			adaptor->broken = true;
			dev_err(&adaptor->pdev->dev,
				"command %u timed out (%u ms); no more commands until a reset\n",
				opcode, command_timeout_ms);
			return -ETIMEDOUT;
		}
		/* The completion may be an earlier command's: then this only looks once more. */
		wait_for_completion_timeout(&adaptor->command_done,
					    msecs_to_jiffies(ARDMA_COMMAND_POLL_MS));
	}
	if (PCI_POSSIBLE_ERROR(status)) {
		adaptor->broken = true;
		dev_err(&adaptor->pdev->dev, "the adaptor stopped answering in command %u\n",
			opcode);
		return -EIO;
	}
	/* What the adaptor wrote into memory is read after its status. */
	dma_rmb();
	return ardma_command_errno(adaptor, opcode, status);
}

/* The mailbox for a new command, all zero; NULL where it may not be touched. */
static struct ardma_descriptor *ardma_command_prepare(struct ardma_adaptor *adaptor)
{
	if (adaptor->broken)
		return NULL;
	memset(adaptor->mailbox, 0, sizeof(*adaptor->mailbox));
	return adaptor->mailbox;
}

static u32 ardma_command_flags(const struct ardma_grant *grant)
{
	return (grant->space == ARDMA_SPACE_IO ? ARDMA_CMD_FLAG_IO : 0) |
	       (grant->of_bar ? ARDMA_CMD_FLAG_BUS : 0);
}

/* Makes the window and sets its offset; wanted may be ARDMA_OFFSET_ANY. */
int ardma_command_export(struct ardma_adaptor *adaptor, struct ardma_grant *grant, u64 wanted)
{
	struct ardma_descriptor *descriptor = ardma_command_prepare(adaptor);
	int i, ret;

	if (!descriptor)
		return -EIO;
	descriptor->offset = cpu_to_le64(wanted);
	descriptor->length = cpu_to_le64(grant->length);
	descriptor->rights = cpu_to_le32(grant->rights | ardma_command_flags(grant));
	descriptor->run_count = cpu_to_le32(grant->list.run_count);
	descriptor->list = cpu_to_le64(ardma_run_list_bus(&grant->list));
	for (i = 0; i < ARRAY_SIZE(grant->nodes); i++)
		descriptor->nodes[i] = cpu_to_le64(grant->nodes[i]);
	memcpy(descriptor->name, grant->name, sizeof(descriptor->name));
	ret = ardma_command(adaptor, ARDMA_CMD_EXPORT, get_random_u32());
	if (ret)
		return ret;
	grant->offset = ardma_read64(adaptor, ARDMA_REG_COMMAND_RESULT);
	/* All-ones too, where the adaptor went away just now. */
	if (!IS_ALIGNED(grant->offset, ARDMA_MEMORY_GRAIN)) {
		adaptor->broken = true;
		return -EIO;
	}
	return 0;
}

int ardma_command_unexport(struct ardma_adaptor *adaptor, const struct ardma_grant *grant)
{
	struct ardma_descriptor *descriptor = ardma_command_prepare(adaptor);

	if (!descriptor)
		return -EIO;
	descriptor->offset = cpu_to_le64(grant->offset);
	descriptor->rights = cpu_to_le32(ardma_command_flags(grant));
	return ardma_command(adaptor, ARDMA_CMD_UNEXPORT, get_random_u32());
}

/* Finds out whether the adaptor sees the guest's memory, and keeps the answer. */
int ardma_command_probe(struct ardma_adaptor *adaptor)
{
	struct ardma_descriptor *descriptor = ardma_command_prepare(adaptor);
	u32 cookie = get_random_u32();
	u64 proof = (u64)cookie << 32 | (u32)~cookie;
	u32 memory = ARDMA_MEMORY_UNKNOWN;
	int ret;

	if (!descriptor)
		return -EIO;
	ret = ardma_command(adaptor, ARDMA_CMD_PROBE, cookie);
	/* It may also see a copy that is only its own, or not reach the memory at all. */
	if (ret == -ENXIO || (!ret && le64_to_cpu(READ_ONCE(descriptor->proof)) != proof))
		ret = -EOPNOTSUPP;

	if (!ret)
		memory = ARDMA_MEMORY_SHARED;
	else if (ret == -EOPNOTSUPP)
		memory = ARDMA_MEMORY_NOT_SHARED;
	ardma_set_memory(adaptor, memory);
	return ret;
}

/* Has the adaptor hold the memory, and sets its key. */
int ardma_command_register(struct ardma_adaptor *adaptor, struct ardma_registration *registration)
{
	struct ardma_descriptor *descriptor = ardma_command_prepare(adaptor);
	u64 key;
	int ret;

	if (!descriptor)
		return -EIO;
	descriptor->length = cpu_to_le64(registration->length);
	descriptor->rights = cpu_to_le32(registration->rights);
	descriptor->run_count = cpu_to_le32(registration->list.run_count);
	descriptor->list = cpu_to_le64(ardma_run_list_bus(&registration->list));
	descriptor->domain = cpu_to_le32(registration->domain);
	ret = ardma_command(adaptor, ARDMA_CMD_REGISTER, get_random_u32());
	if (ret)
		return ret;
	key = ardma_read64(adaptor, ARDMA_REG_COMMAND_RESULT);
	/* All-ones too, where the adaptor went away just now. */
	if (!key || key > U32_MAX) {
		adaptor->broken = true;
		return -EIO;
	}
	registration->key = key;
	return 0;
}

int ardma_command_deregister(struct ardma_adaptor *adaptor,
			     const struct ardma_registration *registration)
{
	struct ardma_descriptor *descriptor = ardma_command_prepare(adaptor);

	if (!descriptor)
		return -EIO;
	descriptor->domain = cpu_to_le32(registration->domain);
	descriptor->key = cpu_to_le32(registration->key);
	return ardma_command(adaptor, ARDMA_CMD_DEREGISTER, get_random_u32());
}

int ardma_command_create_queue(struct ardma_adaptor *adaptor, u32 domain,
			       const struct ardma_create_queue *argument, u32 *number)
{
	struct ardma_descriptor *descriptor = ardma_command_prepare(adaptor);
	u64 result;
	int ret;

	if (!descriptor)
		return -EIO;
	descriptor->offset = cpu_to_le64(argument->submission);
	descriptor->length = cpu_to_le64(argument->completion);
	descriptor->run_count = cpu_to_le32(argument->entries_log2);
	/* Two fields of 32 bits. */
	descriptor->list = cpu_to_le64((u64)argument->coalesce_us << 32 | argument->coalesce_count);
	descriptor->domain = cpu_to_le32(domain);
	descriptor->key = cpu_to_le32(argument->key);
	ret = ardma_command(adaptor, ARDMA_CMD_CREATE_QUEUE, get_random_u32());
	if (ret)
		return ret;
	result = ardma_read64(adaptor, ARDMA_REG_COMMAND_RESULT);
	if (result >= adaptor->node_count * ARDMA_QUEUES_PER_NODE) {
		adaptor->broken = true;
		return -EIO;
	}
	*number = result;
	return 0;
}

int ardma_command_destroy_queue(struct ardma_adaptor *adaptor, u32 number)
{
	struct ardma_descriptor *descriptor = ardma_command_prepare(adaptor);

	if (!descriptor)
		return -EIO;
	descriptor->offset = cpu_to_le64(number);
	return ardma_command(adaptor, ARDMA_CMD_DESTROY_QUEUE, get_random_u32());
}
