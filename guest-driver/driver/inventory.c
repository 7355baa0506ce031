// SPDX-License-Identifier: GPL-2.0-only
/*
 * What nodes export, as their adaptors announce it. It is another machine's word: nothing here, or in
 * the kernel, relies on it.
 */
#include "driver.h"

/* How often an entry is read again because its list has changed meanwhile. */
#define ARDMA_INVENTORY_TRIES	16

/* The selected entry; parts of it may be another list's. */
static void ardma_inventory_read(struct ardma_adaptor *adaptor, struct ardma_inventory *entry)
{
	u32 rights = ardma_read32(adaptor, ARDMA_REG_INVENTORY_RIGHTS);
	__le64 name[3];

	static_assert(sizeof(name) == sizeof(entry->name));
	entry->kind = ardma_read32(adaptor, ARDMA_REG_INVENTORY_KIND);
	entry->rights = rights & (ARDMA_RIGHT_READ | ARDMA_RIGHT_WRITE);
	entry->space = rights & ARDMA_INVENTORY_IO ? ARDMA_SPACE_IO : ARDMA_SPACE_MEMORY;
	entry->offset = ardma_read64(adaptor, ARDMA_REG_INVENTORY_OFFSET);
	entry->length = ardma_read64(adaptor, ARDMA_REG_INVENTORY_LENGTH);
	name[0] = cpu_to_le64(ardma_read64(adaptor, ARDMA_REG_INVENTORY_NAME_0));
	name[1] = cpu_to_le64(ardma_read64(adaptor, ARDMA_REG_INVENTORY_NAME_1));
	name[2] = cpu_to_le64(ardma_read64(adaptor, ARDMA_REG_INVENTORY_NAME_2));
	memcpy(entry->name, name, sizeof(entry->name));
}

int ardma_inventory(struct ardma_adaptor *adaptor, struct ardma_inventory *argument)
{
	int tries = ARDMA_INVENTORY_TRIES;
	int ret;

	if (argument->node >= ARDMA_NODE_ENTRIES || argument->index > ARDMA_INVENTORY_INDEX_MAX ||
	    argument->reserved)
		return -EINVAL;
	ret = ardma_enter_full(adaptor, &adaptor->inventory_lock);
	if (ret)
		return ret;
	ardma_write32(adaptor, ARDMA_REG_INVENTORY_SELECT,
		      ARDMA_INVENTORY_ENTRY(argument->node, argument->index));
	ret = -EAGAIN;
	while (ret == -EAGAIN && tries--) {
		argument->version = ardma_read32(adaptor, ARDMA_REG_INVENTORY_VERSION);
		argument->count = ardma_read32(adaptor, ARDMA_REG_INVENTORY_COUNT);
		ardma_inventory_read(adaptor, argument);
		if (argument->version == ardma_read32(adaptor, ARDMA_REG_INVENTORY_VERSION) &&
		    argument->count == ardma_read32(adaptor, ARDMA_REG_INVENTORY_COUNT))
			ret = 0;
	}
	ret = ardma_verify(adaptor) ?: ret;
	ardma_leave_locked(adaptor, &adaptor->inventory_lock);
	return ret;
}
