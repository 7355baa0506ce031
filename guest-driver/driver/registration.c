// SPDX-License-Identifier: GPL-2.0-only
/*
 * Memory of user processes that the engine reaches. The list of registrations mirrors the keys that the
 * adaptor holds; memory is given back only when the adaptor has let go of its key, and of every queue
 * and window that is in it.
 */
#include <linux/mm.h>
#include <linux/slab.h>

#include "driver.h"

#define ARDMA_LOCAL_RIGHTS	(ARDMA_LOCAL_READ | ARDMA_LOCAL_WRITE)

/* Gives the memory back: the adaptor has let go of it, or never had it. */
static void ardma_registration_release(struct ardma_adaptor *adaptor,
				       struct ardma_registration *registration)
{
	ardma_run_list_destroy(adaptor, &registration->list);
	ardma_memory_unmap(adaptor, &registration->memory);
	ardma_memory_unpin(&registration->memory);
	registration->lost = true;
}

static void ardma_registration_free(struct ardma_registration *registration)
{
	list_del(&registration->entry);
	kfree(registration);
}

/*
 * Has the adaptor hold the memory. Where an error leaves open whether it does, the registration goes
 * into the list as an orphan, and *kept is set.
 */
static int ardma_registration_make(struct ardma_adaptor *adaptor,
				   struct ardma_registration *registration, bool *kept)
{
	int ret;

	*kept = false;
	ret = ardma_memory_map(adaptor, &registration->memory);
	if (!ret)
		ret = ardma_run_list_create(adaptor, &registration->memory, &registration->list);
	if (ret)
		goto err_unmap;

	mutex_lock(&adaptor->command_lock);
	if (adaptor->broken) {
		ret = -EIO;
		goto err_unlock;
	}
	ret = ardma_command_register(adaptor, registration);
	if (ret && !adaptor->broken)
		goto err_unlock;
	if (ret)
		registration->file = NULL;
	else
		ardma_run_list_destroy(adaptor, &registration->list);
	list_add_tail(&registration->entry, &adaptor->registrations);
	*kept = true;
	mutex_unlock(&adaptor->command_lock);
	return ret;

err_unlock:
	mutex_unlock(&adaptor->command_lock);
err_unmap:
	ardma_run_list_destroy(adaptor, &registration->list);
	ardma_memory_unmap(adaptor, &registration->memory);
	return ret;
}

int ardma_register(struct ardma_file *file, struct ardma_register *argument)
{
	struct ardma_adaptor *adaptor = file->adaptor;
	u64 offset = argument->address & (PAGE_SIZE - 1);
	struct ardma_registration *registration;
	bool kept;
	int ret;

	if (!argument->length || !argument->rights || (argument->rights & ~ARDMA_LOCAL_RIGHTS) ||
	    argument->key || argument->offset)
		return -EINVAL;
	if (argument->length > LONG_MAX || argument->address > LONG_MAX)
		return -EFAULT;
	ret = ardma_check_shared(adaptor);
	if (ret)
		return ret;
	registration = kzalloc(sizeof(*registration), GFP_KERNEL_ACCOUNT);
	if (!registration)
		return -ENOMEM;
	registration->file = file;
	registration->domain = file->domain;
	registration->rights = argument->rights;
	registration->length = PAGE_ALIGN(offset + argument->length);
	ret = ardma_memory_pin(&registration->memory, argument->address - offset,
			       registration->length, argument->rights & ARDMA_LOCAL_WRITE);
	if (ret)
		goto err_free;

	ret = ardma_enter(adaptor);
	if (ret)
		goto err_unpin;
	ret = ardma_registration_make(adaptor, registration, &kept);
	if (!ret) {
		argument->offset = offset;
		argument->key = registration->key;
	}
	ardma_leave(adaptor);
	if (!ret || kept)
		return ret;

err_unpin:
	ardma_memory_unpin(&registration->memory);
err_free:
	kfree(registration);
	return ret;
}

/* This file's registration with this key; one that was lost only where there is no other. */
struct ardma_registration *ardma_registration_find(struct ardma_file *file, u32 key)
{
	struct ardma_registration *registration, *lost = NULL;

	lockdep_assert_held(&file->adaptor->command_lock);

	list_for_each_entry(registration, &file->adaptor->registrations, entry) {
		if (registration->file != file || registration->key != key)
			continue;
		if (!registration->lost)
			return registration;
		lost = registration;
	}
	return lost;
}

/* Has the adaptor let go of the key, and gives the memory back; on an error both stay. */
static int ardma_registration_withdraw(struct ardma_adaptor *adaptor,
				       struct ardma_registration *registration)
{
	int ret;

	if (registration->users)
		return -EBUSY;
	ret = ardma_command_deregister(adaptor, registration);
	/* A key that the adaptor does not have is as good as withdrawn. */
	if (ret == -ENOENT)
		ret = -ESTALE;
	if (ret && ret != -ESTALE)
		return ret;
	ardma_registration_release(adaptor, registration);
	return ret;
}

int ardma_deregister(struct ardma_file *file, u32 key)
{
	struct ardma_adaptor *adaptor = file->adaptor;
	struct ardma_registration *registration;
	int ret;

	ret = ardma_enter(adaptor);
	if (ret)
		return ret;
	mutex_lock(&adaptor->command_lock);
	registration = ardma_registration_find(file, key);
	if (!registration)
		ret = -ENOENT;
	else if (registration->lost)
		ret = -ESTALE;
	else
		ret = ardma_registration_withdraw(adaptor, registration);
	if (registration && registration->lost)
		ardma_registration_free(registration);
	mutex_unlock(&adaptor->command_lock);
	ardma_leave(adaptor);
	return ret;
}

/* Deregisters a file's memory as it is closed. What the adaptor does not let go of becomes an orphan. */
void ardma_registrations_close(struct ardma_file *file)
{
	struct ardma_adaptor *adaptor = file->adaptor;
	struct ardma_registration *registration, *next;

	lockdep_assert_held(&adaptor->gate);

	mutex_lock(&adaptor->command_lock);
	list_for_each_entry_safe(registration, next, &adaptor->registrations, entry) {
		if (registration->file != file)
			continue;
		if (!registration->lost)
			ardma_registration_withdraw(adaptor, registration);
		if (registration->lost)
			ardma_registration_free(registration);
		else
			registration->file = NULL;
	}
	mutex_unlock(&adaptor->command_lock);
}

/* Deregisters everything, the lost ones' records stay; how many the adaptor did not let go of. */
unsigned int ardma_registrations_withdraw(struct ardma_adaptor *adaptor)
{
	struct ardma_registration *registration;
	unsigned int left = 0;

	lockdep_assert_held_write(&adaptor->gate);

	mutex_lock(&adaptor->command_lock);
	list_for_each_entry(registration, &adaptor->registrations, entry) {
		if (!registration->lost)
			ardma_registration_withdraw(adaptor, registration);
		if (!registration->lost)
			left++;
	}
	mutex_unlock(&adaptor->command_lock);
	return left;
}

/* The adaptor began a new life, in which it has no key: gives all memory back. */
void ardma_registrations_lost(struct ardma_adaptor *adaptor)
{
	struct ardma_registration *registration, *next;

	lockdep_assert_held_write(&adaptor->gate);
	lockdep_assert_held(&adaptor->command_lock);

	list_for_each_entry_safe(registration, next, &adaptor->registrations, entry) {
		if (!registration->lost)
			ardma_registration_release(adaptor, registration);
		if (!registration->file)
			ardma_registration_free(registration);
	}
}

/* Forgets everything at removal. What the adaptor did not let go of stays pinned for good. */
void ardma_registrations_forget(struct ardma_adaptor *adaptor)
{
	struct ardma_registration *registration, *next;

	lockdep_assert_held_write(&adaptor->gate);

	mutex_lock(&adaptor->command_lock);
	list_for_each_entry_safe(registration, next, &adaptor->registrations, entry) {
		if (!registration->lost)
			dev_err(&adaptor->pdev->dev,
				"%lu registered pages stay pinned: the adaptor did not let go\n",
				registration->memory.page_count);
		ardma_registration_free(registration);
	}
	mutex_unlock(&adaptor->command_lock);
}
