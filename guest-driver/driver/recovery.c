// SPDX-License-Identifier: GPL-2.0-only
/*
 * What is left to do without a program: windows, keys and queues that are nobody's any more are
 * withdrawn, the answer to a command that is missing is taken, and where none comes the function is
 * reset, after which the adaptor holds nothing.
 */
#include <linux/delay.h>
#include <linux/workqueue.h>

#include "driver.h"

/* Between two looks for an answer, and until what the adaptor refused is tried again. */
#define ARDMA_SETTLE_POLL_MS	20
#define ARDMA_SETTLE_AGAIN_MS	5000

/* Resets the function by itself: it did not answer a command. */
static void ardma_restart(struct ardma_adaptor *adaptor)
{
	down_write(&adaptor->gate);
	if (adaptor->gone || !adaptor->late.opcode || adaptor->health != ARDMA_WELL)
		goto out;
	dev_err(&adaptor->pdev->dev, "command %u was never answered: the function is reset\n",
		adaptor->late.opcode);
	ardma_zap_mappings(adaptor);
	if (ardma_reset_function(adaptor)) {
		ardma_start(adaptor);
	} else {
		WRITE_ONCE(adaptor->health, ARDMA_SILENT);
		pci_clear_master(adaptor->pdev);
	}
	ardma_announce(adaptor, ARDMA_EVENT_RESET);
out:
	up_write(&adaptor->gate);
}

/* Withdraws one thing that is nobody's: 1, or 0 where there is none, or an error. */
static int ardma_withdraw_nobodys(struct ardma_adaptor *adaptor)
{
	return ardma_grants_withdraw(adaptor, NULL) ?: ardma_queues_withdraw(adaptor, NULL) ?:
	       ardma_registrations_withdraw(adaptor, NULL);
}

/*
 * Returns when no answer is missing, and nothing is left that is nobody's, or the adaptor does not
 * let go of it. Takes gate and lock anew for each step.
 */
void ardma_settle(struct ardma_adaptor *adaptor)
{
	bool late, overdue;
	int ret = 1;

	while (ret > 0 && !ardma_command_enter_always(adaptor)) {
		late = adaptor->late.opcode && adaptor->health == ARDMA_WELL;
		overdue = late && time_after(jiffies, adaptor->late.deadline);
		if (!late)
			ret = ardma_withdraw_nobodys(adaptor);
		/* That may have been the next one that is not answered. */
		if (ret < 0 && adaptor->late.opcode && adaptor->health == ARDMA_WELL)
			ret = 1;
		else if (ret < 0 && adaptor->health == ARDMA_WELL)
			mod_delayed_work(system_long_wq, &adaptor->settle_work,
					 msecs_to_jiffies(ARDMA_SETTLE_AGAIN_MS));
		ardma_command_leave(adaptor);
		if (overdue)
			ardma_restart(adaptor);
		else if (late)
			msleep(ARDMA_SETTLE_POLL_MS);
	}
}

static void ardma_settle_work(struct work_struct *work)
{
	struct ardma_adaptor *adaptor =
		container_of(to_delayed_work(work), struct ardma_adaptor, settle_work);

	/* Whoever waits for messages or completions makes no call that would tell him. */
	if (READ_ONCE(adaptor->health) == ARDMA_STALE && !ardma_enter_always(adaptor)) {
		ardma_messages_lost(adaptor);
		ardma_queues_wake(adaptor);
		ardma_leave(adaptor);
	}
	ardma_settle(adaptor);
}

void ardma_recovery_create(struct ardma_adaptor *adaptor)
{
	INIT_DELAYED_WORK(&adaptor->settle_work, ardma_settle_work);
}
