// SPDX-License-Identifier: GPL-2.0-only
/*
 * Windows: memory of user processes, and of other PCI functions, that the adaptor lets other nodes
 * reach. The list of grants mirrors what the adaptor holds; a grant's memory is given back only
 * when the adaptor has let go of it.
 */
#include <linux/mm.h>
#include <linux/pid.h>
#include <linux/slab.h>

#include "driver.h"

#define ARDMA_RIGHTS	(ARDMA_RIGHT_READ | ARDMA_RIGHT_WRITE | ARDMA_RIGHT_ATOMIC)
/* What only the memory space has. */
#define ARDMA_MEMORY_RIGHTS	(ARDMA_RIGHT_ATOMIC | ARDMA_RIGHT_BEYOND)
/* Offsets of a node, of which its window shows the first. */
#define ARDMA_OFFSETS	(1ULL << ARDMA_ADDR_NODE_SHIFT)

static bool ardma_page_aligned(u64 value)
{
	return !(value & (PAGE_SIZE - 1));
}

/* Where windows of a space may lie: 0, or -EINVAL where there is no such space. */
static int ardma_space_range(struct ardma_adaptor *adaptor, u32 space, u64 *start, u64 *end)
{
	switch (space) {
	case ARDMA_SPACE_MEMORY:
		*start = 0;
		*end = adaptor->window_size;
		return 0;
	case ARDMA_SPACE_IO:
		*start = ARDMA_IO_OWN_SIZE;
		*end = 1ULL << ARDMA_IO_WINDOW_BITS;
		return 0;
	default:
		return -EINVAL;
	}
}

/* What a window of either kind has to keep to. */
static int ardma_check_window(struct ardma_adaptor *adaptor, const struct ardma_grant *window)
{
	size_t name = strnlen(window->name, sizeof(window->name));
	u64 start, end, any = 0;
	int i;

	for (i = 0; i < ARRAY_SIZE(window->nodes); i++)
		any |= window->nodes[i];
	if (!any || !(window->rights & ARDMA_RIGHTS) ||
	    (window->rights & ~(ARDMA_RIGHTS | ARDMA_RIGHT_BEYOND)) ||
	    ardma_space_range(adaptor, window->space, &start, &end))
		return -EINVAL;
	if (memchr_inv(window->name + name, 0, sizeof(window->name) - name))
		return -EINVAL;
	if ((window->rights & ARDMA_MEMORY_RIGHTS) &&
	    (window->space == ARDMA_SPACE_IO || window->of_bar))
		return -EINVAL;
	if (window->rights & ARDMA_RIGHT_BEYOND)
		end = ARDMA_OFFSETS;
	if (!ardma_page_aligned(window->length) || !window->length ||
	    window->length > end - start)
		return -EINVAL;
	if (window->offset != ARDMA_OFFSET_ANY &&
	    (!ardma_page_aligned(window->offset) || window->offset < start ||
	     window->offset > end - window->length))
		return -EINVAL;
	return 0;
}

/* Refuses early where the memory is known not to be shared, but looks again, as that may change. */
int ardma_check_shared(struct ardma_adaptor *adaptor)
{
	int ret = ardma_command_enter(adaptor);

	if (ret)
		return ret;
	if (adaptor->memory != ARDMA_MEMORY_SHARED)
		ret = ardma_command_probe(adaptor);
	ardma_command_leave(adaptor);
	return ret;
}

/* A copy of the window that is asked for, as this file's; NULL without memory. */
static struct ardma_grant *ardma_grant_create(struct ardma_file *file,
					      const struct ardma_grant *window)
{
	struct ardma_grant *grant = kmemdup(window, sizeof(*window), GFP_KERNEL_ACCOUNT);

	if (!grant)
		return NULL;
	grant->file = file;
	grant->owner = get_pid(task_tgid(current));
	return grant;
}

/* One that is in no list. */
static void ardma_grant_free(struct ardma_grant *grant)
{
	put_pid(grant->owner);
	kfree(grant);
}

/* From here on it is the list's, and counts as its user's. */
static void ardma_grant_add(struct ardma_adaptor *adaptor, struct ardma_grant *grant)
{
	grant->account = grant->file->account;
	grant->account->windows++;
	if (grant->registration)
		grant->registration->users++;
	list_add_tail(&grant->entry, &adaptor->grants);
}

/* The opposite. */
static void ardma_grant_drop(struct ardma_grant *grant)
{
	grant->account->windows--;
	list_del(&grant->entry);
	ardma_grant_free(grant);
}

/* Maps for DMA what the window is of, and lists where it lies. */
static int ardma_grant_map(struct ardma_adaptor *adaptor, struct ardma_grant *grant)
{
	struct ardma_bar *bar = &grant->bar;
	int ret;

	if (bar->function) {
		ret = ardma_bar_map(adaptor, bar, grant->length);
		if (!ret)
			ret = ardma_run_list_create_one(adaptor, bar->bus, grant->length,
							&grant->list);
	} else if (grant->registration) {
		ret = ardma_run_list_create_part(adaptor, &grant->registration->memory,
						 grant->start, grant->length, &grant->list);
	} else {
		ret = ardma_memory_map(adaptor, &grant->memory);
		if (!ret)
			ret = ardma_run_list_create(adaptor, &grant->memory, &grant->list);
	}
	return ret;
}

/* Also after a map that has failed. What is to be kept the adaptor may still reach. */
static void ardma_grant_unmap(struct ardma_adaptor *adaptor, struct ardma_grant *grant, bool keep)
{
	ardma_run_list_destroy(adaptor, &grant->list, keep);
	ardma_bar_unmap(adaptor, &grant->bar);
	ardma_memory_unmap(adaptor, &grant->memory);
}

/* Gives the memory back: the adaptor has let go of it, or never had it. */
static void ardma_grant_release(struct ardma_adaptor *adaptor, struct ardma_grant *grant)
{
	ardma_grant_unmap(adaptor, grant, false);
	if (grant->bar.function)
		ardma_bar_give(adaptor, &grant->bar);
	else if (grant->registration)
		grant->registration->users--;
	else
		ardma_memory_unpin(&grant->memory);
	grant->lost = true;
}

/* The end of EXPORT. */
static void ardma_grant_exported(struct ardma_adaptor *adaptor, void *object, int ret, u64 result)
{
	struct ardma_grant *grant = object;

	grant->offset = result;
	if (ret)
		ardma_grant_release(adaptor, grant);
	else
		ardma_run_list_destroy(adaptor, &grant->list, false);
}

/* The end of UNEXPORT. A window that the adaptor does not have is as good as removed. */
static void ardma_grant_unexported(struct ardma_adaptor *adaptor, void *object, int ret, u64 result)
{
	if (!ret || ret == -ENOENT)
		ardma_grant_release(adaptor, object);
}

/*
 * Has the adaptor make the window, which is mapped, and sets its offset. It is the list's then, or
 * gone: where an error leaves open whether the adaptor knows the memory it becomes nobody's.
 */
static int ardma_grant_command(struct ardma_adaptor *adaptor, struct ardma_grant *grant, u64 *offset)
{
	int ret;

	lockdep_assert_held(&adaptor->command_lock);

	ardma_grant_add(adaptor, grant);
	ret = ardma_command_export(adaptor, grant, *offset, ardma_grant_exported);
	if (!ret)
		*offset = grant->offset;
	else if (grant->lost)
		ardma_grant_drop(grant);
	else
		grant->file = NULL;
	return ret;
}

/* Under command_lock: whether the window may be made, once more. */
static int ardma_grant_check(struct ardma_adaptor *adaptor, struct ardma_grant *grant)
{
	if (grant->bar.function && ardma_bar_going(adaptor, &grant->bar))
		return -ENXIO;
	return ardma_account_check(grant->file->account->windows, 1, ARDMA_WINDOWS);
}

/* The window is of what is pinned, or taken, already. It is the list's then, or gone. */
static int ardma_grant_make(struct ardma_adaptor *adaptor, struct ardma_grant *grant, u64 *offset)
{
	int ret = ardma_enter(adaptor);

	if (ret)
		goto err_release;
	ret = ardma_grant_map(adaptor, grant);
	if (!ret && mutex_lock_killable(&adaptor->command_lock))
		ret = -EINTR;
	if (ret)
		goto err_unmap;
	ardma_command_reap(adaptor);
	ret = ardma_grant_check(adaptor, grant);
	if (!ret) {
		ret = ardma_grant_command(adaptor, grant, offset);
		ardma_command_leave(adaptor);
		return ret;
	}
	mutex_unlock(&adaptor->command_lock);
err_unmap:
	ardma_grant_unmap(adaptor, grant, false);
	ardma_leave(adaptor);
err_release:
	ardma_grant_release(adaptor, grant);
	ardma_grant_free(grant);
	return ret;
}

int ardma_export(struct ardma_file *file, struct ardma_export *argument)
{
	struct ardma_adaptor *adaptor = file->adaptor;
	struct ardma_grant window = {
		.offset = argument->offset,
		.length = argument->length,
		.rights = argument->rights,
		.space = argument->space,
	};
	struct ardma_grant *grant;
	int ret;

	if (!ardma_page_aligned(argument->address))
		return -EINVAL;
	memcpy(window.nodes, argument->nodes, sizeof(window.nodes));
	memcpy(window.name, argument->name, sizeof(window.name));
	ret = ardma_check_window(adaptor, &window);
	if (!ret)
		ret = ardma_check_shared(adaptor);
	if (ret)
		return ret;

	grant = ardma_grant_create(file, &window);
	if (!grant)
		return -ENOMEM;
	ret = ardma_memory_pin(&grant->memory, argument->address, argument->length,
			       argument->rights & (ARDMA_RIGHT_WRITE | ARDMA_RIGHT_ATOMIC));
	if (!ret)
		return ardma_grant_make(adaptor, grant, &argument->offset);
	ardma_grant_free(grant);
	return ret;
}

int ardma_export_bar(struct ardma_file *file, struct ardma_export_bar *argument)
{
	struct ardma_adaptor *adaptor = file->adaptor;
	struct ardma_grant window = {
		.offset = argument->offset,
		.rights = argument->rights,
		.space = argument->space,
		.of_bar = true,
	};
	struct ardma_grant *grant;
	int ret;

	if (argument->reserved)
		return -EINVAL;
	ret = ardma_check_shared(adaptor);
	if (ret)
		return ret;
	memcpy(window.nodes, argument->nodes, sizeof(window.nodes));
	memcpy(window.name, argument->name, sizeof(window.name));
	grant = ardma_grant_create(file, &window);
	if (!grant)
		return -ENOMEM;
	ret = ardma_bar_take(adaptor, &grant->bar, argument);
	if (ret)
		goto err_free;
	grant->length = argument->length;
	ret = ardma_check_window(adaptor, grant);
	if (!ret)
		return ardma_grant_make(adaptor, grant, &argument->offset);
	ardma_bar_give(adaptor, &grant->bar);
err_free:
	ardma_grant_free(grant);
	return ret;
}

/* Whether the window may be made of the memory with this key, which it is then of. */
static int ardma_grant_find_key(struct ardma_file *file, struct ardma_grant *grant,
				const struct ardma_export_key *argument)
{
	struct ardma_registration *registration = ardma_registration_find(file, argument->key);

	if (!registration)
		return -ENOENT;
	if (registration->lost)
		return -ESTALE;
	if (!ardma_page_aligned(argument->start) || argument->start > registration->length ||
	    argument->length > registration->length - argument->start)
		return -EINVAL;
	if ((argument->rights & (ARDMA_RIGHT_WRITE | ARDMA_RIGHT_ATOMIC)) &&
	    !registration->memory.writable)
		return -EACCES;
	grant->registration = registration;
	grant->start = argument->start;
	return ardma_grant_check(file->adaptor, grant);
}

int ardma_export_key(struct ardma_file *file, struct ardma_export_key *argument)
{
	struct ardma_adaptor *adaptor = file->adaptor;
	struct ardma_grant window = {
		.offset = argument->offset,
		.length = argument->length,
		.rights = argument->rights,
		.space = ARDMA_SPACE_MEMORY,
	};
	struct ardma_grant *grant;
	int ret;

	if (argument->reserved)
		return -EINVAL;
	memcpy(window.nodes, argument->nodes, sizeof(window.nodes));
	memcpy(window.name, argument->name, sizeof(window.name));
	ret = ardma_check_window(adaptor, &window);
	if (ret)
		return ret;
	grant = ardma_grant_create(file, &window);
	if (!grant)
		return -ENOMEM;
	ret = ardma_command_enter(adaptor);
	if (ret)
		goto err_free;
	/* The memory stays registered: the lock is held from its look-up on. */
	ret = ardma_grant_find_key(file, grant, argument);
	if (!ret)
		ret = ardma_grant_map(adaptor, grant);
	if (ret) {
		ardma_grant_unmap(adaptor, grant, false);
		ardma_command_leave(adaptor);
		goto err_free;
	}
	ret = ardma_grant_command(adaptor, grant, &argument->offset);
	ardma_command_leave(adaptor);
	return ret;

err_free:
	ardma_grant_free(grant);
	return ret;
}

/* Removes the window and gives its memory back; on an error both stay. */
static int ardma_grant_withdraw(struct ardma_adaptor *adaptor, struct ardma_grant *grant)
{
	int ret = ardma_command_unexport(adaptor, grant, ardma_grant_unexported);

	return ret == -ENOENT ? -ESTALE : ret;
}

/* This file's window at this offset; one that was lost only where there is no other. */
static struct ardma_grant *ardma_grant_find(struct ardma_file *file, u32 space, u64 offset)
{
	struct ardma_grant *grant, *lost = NULL;

	list_for_each_entry(grant, &file->adaptor->grants, entry) {
		if (grant->file != file || grant->space != space || grant->offset != offset)
			continue;
		if (!grant->lost)
			return grant;
		lost = grant;
	}
	return lost;
}

int ardma_unexport(struct ardma_file *file, u32 space, u64 offset)
{
	struct ardma_adaptor *adaptor = file->adaptor;
	struct ardma_grant *grant;
	int ret;

	ret = ardma_command_enter(adaptor);
	if (ret)
		return ret;
	grant = ardma_grant_find(file, space, offset);
	if (!grant)
		ret = -ENOENT;
	else if (grant->lost)
		ret = -ESTALE;
	else
		ret = ardma_grant_withdraw(adaptor, grant);
	if (grant && grant->lost)
		ardma_grant_drop(grant);
	ardma_command_leave(adaptor);
	return ret;
}

/* Fills in the index-th window, of whichever file. */
int ardma_window_info(struct ardma_file *file, struct ardma_window *window)
{
	struct ardma_adaptor *adaptor = file->adaptor;
	struct ardma_grant *grant;
	u32 index = window->index;
	int ret;

	ret = ardma_command_enter(adaptor);
	if (ret)
		return ret;
	ret = -ENOENT;
	list_for_each_entry(grant, &adaptor->grants, entry) {
		if (index--)
			continue;
		window->rights = grant->rights;
		window->offset = grant->offset;
		window->length = grant->length;
		memcpy(window->nodes, grant->nodes, sizeof(window->nodes));
		window->owner = pid_vnr(grant->owner);
		window->flags = (grant->file == file ? ARDMA_WINDOW_MINE : 0) |
				(grant->lost ? ARDMA_WINDOW_LOST : 0) |
				(!grant->file ? ARDMA_WINDOW_ORPHAN : 0) |
				(grant->space == ARDMA_SPACE_IO ? ARDMA_WINDOW_IO : 0) |
				(grant->of_bar ? ARDMA_WINDOW_BAR : 0) |
				(grant->registration ? ARDMA_WINDOW_KEY : 0);
		ret = 0;
		break;
	}
	ardma_command_leave(adaptor);
	return ret;
}

/*
 * Removes one window of this file, which is being closed, or (NULL) one that is nobody's. 0: there
 * is none; 1: it is removed; 2: it was the file's, and is nobody's now; an error: it is nobody's still.
 */
int ardma_grants_withdraw(struct ardma_adaptor *adaptor, struct ardma_file *file)
{
	struct ardma_grant *grant;
	int ret = 0;

	lockdep_assert_held(&adaptor->command_lock);

	list_for_each_entry(grant, &adaptor->grants, entry) {
		if (grant->file != file)
			continue;
		if (!grant->lost)
			ret = ardma_grant_withdraw(adaptor, grant);
		grant->file = NULL;
		if (!grant->lost)
			return file ? 2 : ret;
		ardma_grant_drop(grant);
		return 1;
	}
	return 0;
}

/* The adaptor began a new life, in which it has no window: gives all memory back. */
void ardma_grants_lost(struct ardma_adaptor *adaptor)
{
	struct ardma_grant *grant, *next;

	lockdep_assert_held_write(&adaptor->gate);
	lockdep_assert_held(&adaptor->command_lock);

	list_for_each_entry_safe(grant, next, &adaptor->grants, entry) {
		if (!grant->lost)
			ardma_grant_release(adaptor, grant);
		if (!grant->file)
			ardma_grant_drop(grant);
	}
}

/* The windows of this function go with it. */
void ardma_grants_function_gone(struct ardma_adaptor *adaptor, struct pci_dev *function)
{
	struct ardma_grant *grant, *next;

	/* Once the adaptor is gone they are. */
	if (ardma_command_enter_always(adaptor))
		return;
	list_for_each_entry_safe(grant, next, &adaptor->grants, entry) {
		if (grant->bar.function != function)
			continue;
		ardma_grant_withdraw(adaptor, grant);
		if (grant->lost && !grant->file)
			ardma_grant_drop(grant);
		else if (!grant->lost)
			dev_err(&adaptor->pdev->dev,
				"%s goes, but the adaptor did not let go of it\n",
				pci_name(function));
	}
	ardma_command_leave(adaptor);
}

/* What the adaptor did not let go of, at its removal: it stays pinned for good. */
static void ardma_grant_abandon(struct ardma_adaptor *adaptor, struct ardma_grant *grant)
{
	struct device *dev = &adaptor->pdev->dev;

	ardma_grant_unmap(adaptor, grant, true);
	if (grant->bar.function) {
		dev_err(dev, "the adaptor did not let go of %s\n", pci_name(grant->bar.function));
		ardma_bar_give(adaptor, &grant->bar);
	} else if (!grant->registration) {
		/* Of registered memory its registration tells. */
		dev_err(dev, "%lu pages (%s offset 0x%llx) stay pinned: the adaptor did not let go\n",
			grant->memory.page_count, grant->space == ARDMA_SPACE_IO ? "I/O" : "memory",
			grant->offset);
		ardma_memory_abandon(adaptor, &grant->memory);
	}
}

/* Forgets every window at removal. */
void ardma_grants_forget(struct ardma_adaptor *adaptor)
{
	struct ardma_grant *grant, *next;

	lockdep_assert_held_write(&adaptor->gate);

	mutex_lock(&adaptor->command_lock);
	list_for_each_entry_safe(grant, next, &adaptor->grants, entry) {
		if (!grant->lost)
			ardma_grant_abandon(adaptor, grant);
		ardma_grant_drop(grant);
	}
	mutex_unlock(&adaptor->command_lock);
}
