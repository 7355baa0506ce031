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
	ardma_run_list_destroy(adaptor, &registration->list, false);
	ardma_memory_unmap(adaptor, &registration->memory);
	ardma_memory_unpin(&registration->memory);
	registration->lost = true;
}

/* From here on it is the list's, and counts as its user's. */
static void ardma_registration_add(struct ardma_adaptor *adaptor,
				   struct ardma_registration *registration)
{
	registration->account = registration->file->account;
	registration->account->keys++;
	list_add_tail(&registration->entry, &adaptor->registrations);
}

/* The opposite. */
static void ardma_registration_drop(struct ardma_registration *registration)
{
	registration->account->keys--;
	list_del(&registration->entry);
	kfree(registration);
}

/* The end of REGISTER. */
static void ardma_registration_registered(struct ardma_adaptor *adaptor, void *object, int ret,
					  u64 result)
{
	struct ardma_registration *registration = object;

	registration->key = result;
	if (ret)
		ardma_registration_release(adaptor, registration);
	else
		ardma_run_list_destroy(adaptor, &registration->list, false);
}

/* The end of DEREGISTER. A key that the adaptor does not have is as good as withdrawn. */
static void ardma_registration_deregistered(struct ardma_adaptor *adaptor, void *object, int ret,
					    u64 result)
{
	if (!ret || ret == -ENOENT)
		ardma_registration_release(adaptor, object);
}

/*
 * Has the adaptor hold the memory, which is mapped, and sets its key. It is the list's then, or
 * gone: where an error leaves open whether the adaptor has it, it becomes nobody's.
 */
static int ardma_registration_command(struct ardma_adaptor *adaptor,
				      struct ardma_registration *registration, u32 *key)
{
	int ret;

	lockdep_assert_held(&adaptor->command_lock);

	ardma_registration_add(adaptor, registration);
	ret = ardma_command_register(adaptor, registration, ardma_registration_registered);
	if (!ret)
		*key = registration->key;
	else if (registration->lost)
		ardma_registration_drop(registration);
	else
		registration->file = NULL;
	return ret;
}

/* The memory is pinned already. It is the list's then, or gone. */
static int ardma_registration_make(struct ardma_adaptor *adaptor,
				   struct ardma_registration *registration, u32 *key)
{
	int ret = ardma_enter(adaptor);

	if (ret)
		goto err_release;
	ret = ardma_memory_map(adaptor, &registration->memory);
	if (!ret)
		ret = ardma_run_list_create(adaptor, &registration->memory, &registration->list);
	if (!ret && mutex_lock_killable(&adaptor->command_lock))
		ret = -EINTR;
	if (ret)
		goto err_unmap;
	ardma_command_reap(adaptor);
	ret = ardma_account_check(registration->file->account->keys, 1, ARDMA_KEYS);
	if (!ret) {
		ret = ardma_registration_command(adaptor, registration, key);
		ardma_command_leave(adaptor);
		return ret;
	}
	mutex_unlock(&adaptor->command_lock);
err_unmap:
	ardma_run_list_destroy(adaptor, &registration->list, false);
	ardma_memory_unmap(adaptor, &registration->memory);
	ardma_leave(adaptor);
err_release:
	ardma_registration_release(adaptor, registration);
	kfree(registration);
	return ret;
}

int ardma_register(struct ardma_file *file, struct ardma_register *argument)
{
	struct ardma_adaptor *adaptor = file->adaptor;
	u64 offset = argument->address & (PAGE_SIZE - 1);
	struct ardma_registration *registration;
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
	if (ret) {
		kfree(registration);
		return ret;
	}
	ret = ardma_registration_make(adaptor, registration, &argument->key);
	if (!ret)
		argument->offset = offset;
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
	ret = ardma_command_deregister(adaptor, registration, ardma_registration_deregistered);
	return ret == -ENOENT ? -ESTALE : ret;
}

int ardma_deregister(struct ardma_file *file, u32 key)
{
	struct ardma_adaptor *adaptor = file->adaptor;
	struct ardma_registration *registration;
	int ret;

	ret = ardma_command_enter(adaptor);
	if (ret)
		return ret;
	registration = ardma_registration_find(file, key);
	if (!registration)
		ret = -ENOENT;
	else if (registration->lost)
		ret = -ESTALE;
	else
		ret = ardma_registration_withdraw(adaptor, registration);
	if (registration && registration->lost)
		ardma_registration_drop(registration);
	ardma_command_leave(adaptor);
	return ret;
}

/* As ardma_grants_withdraw(). */
int ardma_registrations_withdraw(struct ardma_adaptor *adaptor, struct ardma_file *file)
{
	struct ardma_registration *registration;
	int ret = 0;

	lockdep_assert_held(&adaptor->command_lock);

	list_for_each_entry(registration, &adaptor->registrations, entry) {
		if (registration->file != file)
			continue;
		if (!registration->lost)
			ret = ardma_registration_withdraw(adaptor, registration);
		registration->file = NULL;
		if (!registration->lost)
			return file ? 2 : ret;
		ardma_registration_drop(registration);
		return 1;
	}
	return 0;
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
			ardma_registration_drop(registration);
	}
}

/* Forgets everything at removal. What the adaptor did not let go of stays pinned for good. */
void ardma_registrations_forget(struct ardma_adaptor *adaptor)
{
	struct ardma_registration *registration, *next;

	lockdep_assert_held_write(&adaptor->gate);

	mutex_lock(&adaptor->command_lock);
	list_for_each_entry_safe(registration, next, &adaptor->registrations, entry) {
		if (!registration->lost) {
			dev_err(&adaptor->pdev->dev,
				"%lu registered pages stay pinned: the adaptor did not let go\n",
				registration->memory.page_count);
			ardma_run_list_destroy(adaptor, &registration->list, true);
			ardma_memory_abandon(adaptor, &registration->memory);
		}
		ardma_registration_drop(registration);
	}
	mutex_unlock(&adaptor->command_lock);
}
