// SPDX-License-Identifier: GPL-2.0-only
/*
 * What one user holds of an adaptor. All users share it, so that none may take all of it; how much
 * memory is pinned is RLIMIT_MEMLOCK's business.
 */
#include <linux/capability.h>
#include <linux/cred.h>
#include <linux/moduleparam.h>
#include <linux/slab.h>

#include "driver.h"

static unsigned int user_share = 50;
module_param(user_share, uint, 0644);
MODULE_PARM_DESC(user_share,
		 "What one user without CAP_SYS_RESOURCE may hold of an adaptor's windows, keys, queues and doorbells, in percent of each");

/* The account of the user who calls, or NULL without memory. */
struct ardma_account *ardma_account_of(struct ardma_adaptor *adaptor)
{
	unsigned long uid = from_kuid(&init_user_ns, current_uid());
	struct ardma_account *account = xa_load(&adaptor->accounts, uid);
	int ret;

	if (account)
		return account;
	account = kzalloc(sizeof(*account), GFP_KERNEL_ACCOUNT);
	if (!account)
		return NULL;
	ret = xa_insert(&adaptor->accounts, uid, account, GFP_KERNEL_ACCOUNT);
	if (!ret)
		return account;
	kfree(account);
	/* Another thread was faster. */
	return ret == -EBUSY ? xa_load(&adaptor->accounts, uid) : NULL;
}

/* Whether a user who holds so many may have so many more of all that there are: 0, or -EDQUOT. */
int ardma_account_check(unsigned int held, unsigned int more, unsigned int all)
{
	unsigned int share = min(READ_ONCE(user_share), 100U);

	if (held + more <= all * share / 100 || capable(CAP_SYS_RESOURCE))
		return 0;
	return -EDQUOT;
}
