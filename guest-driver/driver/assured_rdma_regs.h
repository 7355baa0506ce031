/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The adaptor's registers and commands: docs/device.md for the compiler. The tests hold the names
 * and numbers here against the adaptor's own table.
 */
#ifndef ASSURED_RDMA_REGS_H
#define ASSURED_RDMA_REGS_H

#define ARDMA_VENDOR_ID		0x1234
#define ARDMA_DEVICE_ID		0x4152

#define ARDMA_BAR_REGISTERS	0
#define ARDMA_BAR_IO		1
#define ARDMA_BAR_ACCESS	2
#define ARDMA_BAR_ASSURANCE	4

#define ARDMA_REGISTERS_SIZE	0x10000

/* The I/O space's windows, and the parts of equal size that the BARs with several spaces have. */
#define ARDMA_IO_WINDOW_BITS	16
#define ARDMA_IO_OWN_SIZE	0x1000	/* at the start of each: the adaptor's own, no windows */
#define ARDMA_IO_PARTS		4	/* I/O space, its assurance space, peek alias, doorbell pages */
#define ARDMA_IO_DOORBELL_PART	3
#define ARDMA_ASSURANCE_PARTS	2	/* assurance space, peek alias */

/* Registers: offsets in BAR0. */
#define ARDMA_REG_MAGIC			0x0000
#define ARDMA_REG_VERSION		0x0004
#define ARDMA_REG_STATUS		0x0008
#define ARDMA_REG_NODE_ID		0x000c
#define ARDMA_REG_NODE_COUNT		0x0010
#define ARDMA_REG_ADDRESS_SPLIT		0x0014
#define ARDMA_REG_INCARNATION		0x0018
#define ARDMA_REG_WINDOW_SIZE		0x0020
#define ARDMA_REG_DEADLINE		0x0028
#define ARDMA_REG_LEASE			0x002c
#define ARDMA_REG_EVENT			0x0030
#define ARDMA_REG_EVENT_ENABLE		0x0034
#define ARDMA_REG_CONTROL		0x0038
#define ARDMA_REG_COMMAND_ADDRESS	0x0040
#define ARDMA_REG_COMMAND_COOKIE	0x0048
#define ARDMA_REG_COMMAND		0x004c
#define ARDMA_REG_COMMAND_STATUS	0x0050
#define ARDMA_REG_COMMAND_RESULT	0x0058
#define ARDMA_REG_OVERFLOW_ACK		0x0060
#define ARDMA_REG_ERROR_COUNT		0x0064
#define ARDMA_REG_UNKNOWN_PACKETS	0x0070
#define ARDMA_REG_LATE_LEASES		0x0078
#define ARDMA_REG_STORES		0x0080
#define ARDMA_REG_LOADS			0x0088
#define ARDMA_REG_CHECKS		0x0090
#define ARDMA_REG_ERRORS		0x0098
#define ARDMA_REG_SERVED_WRITES		0x00a0
#define ARDMA_REG_SERVED_READS		0x00a8
#define ARDMA_REG_REFUSED		0x00b0
#define ARDMA_REG_FAILED_OPERATIONS	0x00b8
#define ARDMA_REG_REGISTER_BASE		0x00c0
#define ARDMA_REG_REGISTER_EXTENT	0x00c8
#define ARDMA_REG_IO_BASE		0x00d0
#define ARDMA_REG_IO_EXTENT		0x00d8
#define ARDMA_REG_ACCESS_BASE		0x00e0
#define ARDMA_REG_ACCESS_EXTENT		0x00e8
#define ARDMA_REG_ASSURANCE_BASE	0x00f0
#define ARDMA_REG_ASSURANCE_EXTENT	0x00f8
#define ARDMA_REG_IO_WINDOW_SIZE	0x0100
#define ARDMA_REG_RANGE_START		0x0108
#define ARDMA_REG_RANGE_END		0x0110
#define ARDMA_REG_RANGE_STATUS		0x0118
#define ARDMA_REG_RANGE_SPACE		0x011c
#define ARDMA_REG_FAILED_BLOCK		0x0120
#define ARDMA_REG_FAILED_POP		0x0128
#define ARDMA_REG_FAILED_COUNT		0x0130
#define ARDMA_REG_MESSAGE_INFO		0x0180
#define ARDMA_REG_MESSAGE_COUNT		0x0184
#define ARDMA_REG_MESSAGE_DATA		0x0188
#define ARDMA_REG_MESSAGE_POP		0x0190
#define ARDMA_REG_MESSAGE_NUMBER	0x0194
#define ARDMA_REG_MESSAGE_LIMIT		0x0198
#define ARDMA_REG_MESSAGE_OVERFLOWS	0x019c
#define ARDMA_REG_MESSAGE_COALESCE_COUNT 0x01a0
#define ARDMA_REG_MESSAGE_COALESCE_TIME	0x01a4
#define ARDMA_REG_MESSAGES_RECEIVED	0x01a8
#define ARDMA_REG_EVENT_VECTOR		0x01b0
#define ARDMA_REG_QUEUE_VECTOR		0x01b4
#define ARDMA_REG_QUEUE_READY		0x01b8
#define ARDMA_REG_INVENTORY_SELECT	0x01c0
#define ARDMA_REG_INVENTORY_COUNT	0x01c4
#define ARDMA_REG_INVENTORY_VERSION	0x01c8
#define ARDMA_REG_SESSION		0x01d0
#define ARDMA_REG_INVENTORY_KIND	0x0200
#define ARDMA_REG_INVENTORY_RIGHTS	0x0204
#define ARDMA_REG_INVENTORY_OFFSET	0x0208
#define ARDMA_REG_INVENTORY_LENGTH	0x0210
#define ARDMA_REG_INVENTORY_NAME_0	0x0218
#define ARDMA_REG_INVENTORY_NAME_1	0x0220
#define ARDMA_REG_INVENTORY_NAME_2	0x0228

#define ARDMA_MAGIC_VALUE		0x4d445241	/* "ARDM" */
#define ARDMA_VERSION_MAJOR		1

/* The bits of STATUS, and of EVENT and EVENT_ENABLE but for these, are in the uapi header. */
#define ARDMA_EVENT_COMMAND		(1U << 2)
#define ARDMA_EVENT_QUEUE		(1U << 8)

#define ARDMA_CONTROL_RESET		(1U << 0)

/* INVENTORY_SELECT, and the bit of INVENTORY_RIGHTS that is no right. */
#define ARDMA_INVENTORY_ENTRY(node, index) ((index) << 8 | (node))
#define ARDMA_INVENTORY_INDEX_MAX	0xffffff
#define ARDMA_INVENTORY_IO		(1U << 3)

/* Node table: an entry of 16 bytes for each of 256 node ids. */
#define ARDMA_NODE_TABLE		0x1000
#define ARDMA_NODE_ENTRY_SIZE		0x10
#define ARDMA_NODE_ENTRIES		256
#define ARDMA_NODE_STATE		0x0
#define ARDMA_NODE_LINK_CHANGES		0x4
#define ARDMA_NODE_INCARNATION		0x8

/* MESSAGE_INFO: the oldest message. */
#define ARDMA_INFO_VALID		(1U << 31)
#define ARDMA_INFO_SOURCE(info)		((info) & 0xff)
#define ARDMA_INFO_DOORBELL(info)	((info) >> 8 & 0xff)
#define ARDMA_INFO_SIZE(info)		((info) >> 16 & 0xff)

/* Doorbell table: an entry of 64 bytes for each of 64 doorbells. */
#define ARDMA_DOORBELL_TABLE		0x3000
#define ARDMA_DOORBELL_ENTRY_SIZE	0x40
#define ARDMA_DOORBELLS			64
#define ARDMA_DOORBELL_CONTROL		0x00
#define ARDMA_DOORBELL_NODES		0x20
#define ARDMA_DOORBELL_HOLD		(1U << 30)	/* of its control: refuse messages for now */
#define ARDMA_DOORBELL_MASKED		(1U << 31)	/* of its control: raise no interrupt */

/* MSI-X. */
#define ARDMA_MSIX_TABLE		0x8000
#define ARDMA_MSIX_PENDING		0x9000
#define ARDMA_MSIX_VECTORS		16
#define ARDMA_VECTOR_EVENTS		0
#define ARDMA_VECTOR_MESSAGES		1
#define ARDMA_VECTOR_QUEUES		2

/* Commands. */
#define ARDMA_DESCRIPTOR_MAGIC		0x43445241	/* "ARDC" */
#define ARDMA_DESCRIPTOR_SIZE		128
#define ARDMA_LIST_PAGE_SIZE		4096
#define ARDMA_LIST_PAGE_RUNS		255
#define ARDMA_MEMORY_GRAIN		4096		/* of addresses, lengths and offsets */

#define ARDMA_CMD_EXPORT		1
#define ARDMA_CMD_UNEXPORT		2
#define ARDMA_CMD_PROBE			3
#define ARDMA_CMD_REGISTER		4
#define ARDMA_CMD_DEREGISTER		5
#define ARDMA_CMD_CREATE_QUEUE		6
#define ARDMA_CMD_DESTROY_QUEUE		7

/* In the descriptor, beside the rights: the window is in the I/O space. */
#define ARDMA_CMD_FLAG_BUS		(1U << 2)
#define ARDMA_CMD_FLAG_IO		(1U << 3)
#define ARDMA_CMD_FLAG_FAR		(1U << 5)

/* Queues of the DMA engine. */
#define ARDMA_QUEUE_NONE		(~0U)	/* QUEUE_READY: no queue */
#define ARDMA_QUEUES_PER_NODE		16	/* doorbell pages for each window of BAR1 */
#define ARDMA_QUEUE_GRAIN		64	/* of the rings' offsets */
#define ARDMA_QUEUE_HEAD		64	/* bytes before the completion ring */
#define ARDMA_QUEUE_ENTRIES_LOG2_MIN	2
#define ARDMA_QUEUE_ENTRIES_LOG2_MAX	12
#define ARDMA_SUBMISSION_LOG2		6	/* of the bytes of an entry */
#define ARDMA_COMPLETION_LOG2		5
#define ARDMA_DOORBELL_PAGE_LOG2	12

#define ARDMA_CMD_STATUS_OK		0
#define ARDMA_CMD_STATUS_BUSY		1
#define ARDMA_CMD_STATUS_BAD_OPCODE	2
#define ARDMA_CMD_STATUS_BAD_DESCRIPTOR	3
#define ARDMA_CMD_STATUS_NOT_SHARED	4
#define ARDMA_CMD_STATUS_MEMORY_FAULT	5
#define ARDMA_CMD_STATUS_BAD_ARGUMENT	6
#define ARDMA_CMD_STATUS_NO_SPACE	7
#define ARDMA_CMD_STATUS_TOO_MANY	8
#define ARDMA_CMD_STATUS_NOT_FOUND	9
#define ARDMA_CMD_STATUS_IN_USE		10

/*
 * The codes in a status word, which a load from the assurance space returns: the reads' code in
 * bits [15:8], the writes' in [7:0]. The two top bits of a code are its class: 0 executed, 1 not
 * executed and a retry makes sense, 2 not executed and will fail again, 3 outcome unknown.
 */
#define ARDMA_CODE_OK			0x00
#define ARDMA_CODE_LINK_DOWN		0x41
#define ARDMA_CODE_NOT_SENT		0x42
#define ARDMA_CODE_NO_RESOURCES		0x43
#define ARDMA_CODE_FLUSHED		0x44
#define ARDMA_CODE_NO_ROUTE		0x81
#define ARDMA_CODE_NO_WINDOW		0x82
#define ARDMA_CODE_ACCESS_DENIED	0x83
#define ARDMA_CODE_BAD_SIZE		0x84
#define ARDMA_CODE_TARGET_FAULT		0x85
#define ARDMA_CODE_BAD_KEY		0x86
#define ARDMA_CODE_BAD_REQUEST		0x87
#define ARDMA_CODE_LOCAL_FAULT		0x88
#define ARDMA_CODE_TIMEOUT		0xc1
#define ARDMA_CODE_PEER_RESTARTED	0xc2
#define ARDMA_CODE_LINK_LOST		0xc3
#define ARDMA_CODE_CORRUPT		0xc4
#define ARDMA_CODE_SEQUENCE		0xc5
#define ARDMA_CODE_LOG_OVERFLOW		0xc6
#define ARDMA_CODE_PARTIAL		0xc7

#endif /* ASSURED_RDMA_REGS_H */
