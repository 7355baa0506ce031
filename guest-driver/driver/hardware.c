// SPDX-License-Identifier: GPL-2.0-only
/*
 * The adaptor's identity, its lives (a reset begins a new one, with a new incarnation) and its
 * events.
 */
#include <linux/delay.h>
#include <linux/interrupt.h>
#include <linux/jiffies.h>
#include <linux/log2.h>

#include "driver.h"

/* How long the adaptor may take to be ready, or to begin a new life. */
#define ARDMA_READY_MS		2000
#define ARDMA_READY_POLL_MS	10
/* A larger queue than this would be a mistake. */
#define ARDMA_MESSAGES_MAX	(1U << 20)

#define ARDMA_FILE_EVENTS	\
	(ARDMA_EVENT_LINK | ARDMA_EVENT_ERROR | ARDMA_EVENT_MEMORY | ARDMA_EVENT_DUPLICATE | \
	 ARDMA_EVENT_INVENTORY | ARDMA_EVENT_FAILED)

/* Whether the registers hold anything but the all-ones of a function that does not answer. */
bool ardma_answers(struct ardma_adaptor *adaptor)
{
	return ardma_read32(adaptor, ARDMA_REG_MAGIC) == ARDMA_MAGIC_VALUE;
}

/* What calls that need the adaptor end with now, or 0. */
int ardma_health_errno(struct ardma_adaptor *adaptor)
{
	switch (READ_ONCE(adaptor->health)) {
	case ARDMA_WELL:
		return 0;
	case ARDMA_STALE:
		return -ESTALE;
	default:
		return -EIO;
	}
}

/*
 * Whether it is still the adaptor in the life that this driver knows: 0, or an errno. A function
 * that answers in configuration space only, or as another incarnation, was disabled or replaced
 * behind the driver's back. Programs are told, as after a reset: nothing of theirs is left.
 */
int ardma_verify(struct ardma_adaptor *adaptor)
{
	struct pci_dev *pdev = adaptor->pdev;
	enum ardma_health health;

	if (likely(ardma_read64(adaptor, ARDMA_REG_INCARNATION) == adaptor->incarnation))
		return ardma_health_errno(adaptor);
	health = pci_device_is_present(pdev) ? ARDMA_STALE : ARDMA_SILENT;
	if (cmpxchg(&adaptor->health, ARDMA_WELL, health) == ARDMA_WELL) {
		if (health == ARDMA_STALE) {
			dev_err(&pdev->dev,
				"the function was disabled, or is another one now: reset it, or unbind and bind it\n");
			ardma_announce(adaptor, ARDMA_EVENT_RESET);
		} else {
			dev_err(&pdev->dev, "the adaptor does not answer any more\n");
		}
		mod_delayed_work(system_long_wq, &adaptor->settle_work, 0);
	}
	return ardma_health_errno(adaptor);
}

/* Keeps configuration space as it is now, for ardma_config_restore(). */
void ardma_config_keep(struct ardma_adaptor *adaptor)
{
	pci_save_state(adaptor->pdev);
	adaptor->config = pci_store_saved_state(adaptor->pdev);
}

/* Where the function was disabled, or replaced by one that nobody has set up. */
void ardma_config_restore(struct ardma_adaptor *adaptor)
{
	struct pci_dev *pdev = adaptor->pdev;

	if (ardma_answers(adaptor) || !adaptor->config)
		return;
	if (pci_device_is_present(pdev) && !pci_load_saved_state(pdev, adaptor->config))
		pci_restore_state(pdev);
}

/* All spaces have to have a place: firmware and kernel give none to a BAR that is too large. */
static int ardma_check_spaces(struct ardma_adaptor *adaptor)
{
	u64 io = (u64)adaptor->node_count << ARDMA_IO_WINDOW_BITS;
	u64 memory = (u64)adaptor->node_count << adaptor->window_bits;
	const struct {
		int bar;
		u64 size;
	} spaces[] = {
		{ ARDMA_BAR_IO, io * ARDMA_IO_PARTS },
		{ ARDMA_BAR_ACCESS, memory },
		{ ARDMA_BAR_ASSURANCE, memory * ARDMA_ASSURANCE_PARTS },
	};
	int i;

	for (i = 0; i < ARRAY_SIZE(spaces); i++) {
		const struct resource *bar = &adaptor->pdev->resource[spaces[i].bar];

		if (!bar->parent || resource_size(bar) < spaces[i].size) {
			dev_err(&adaptor->pdev->dev,
				"no room for BAR %d (%u windows of 0x%llx bytes): give the adaptor fewer or smaller windows, the guest more physical address bits, or a port for hot-plug a mem-reserve and a pref64-reserve\n",
				spaces[i].bar, adaptor->node_count, adaptor->window_size);
			return -ENODEV;
		}
	}
	return 0;
}

/* Whether the windows are where identify() found them: mappings and windows rely on it. */
static bool ardma_is_the_same(struct ardma_adaptor *adaptor)
{
	u32 split = adaptor->window_bits | adaptor->bus_bits << 8 | adaptor->block_bits << 16;

	return ardma_read32(adaptor, ARDMA_REG_VERSION) == adaptor->version &&
	       ardma_read32(adaptor, ARDMA_REG_NODE_ID) == adaptor->node &&
	       ardma_read32(adaptor, ARDMA_REG_NODE_COUNT) == adaptor->node_count &&
	       ardma_read32(adaptor, ARDMA_REG_ADDRESS_SPLIT) == split &&
	       ardma_read32(adaptor, ARDMA_REG_MESSAGE_LIMIT) == adaptor->message_limit;
}

/* Reads what does not change, and refuses what this driver cannot work with. */
int ardma_identify(struct ardma_adaptor *adaptor)
{
	struct device *dev = &adaptor->pdev->dev;
	u32 split;

	if (!ardma_answers(adaptor)) {
		dev_err(dev, "no adaptor answers: MAGIC reads 0x%08x\n",
			ardma_read32(adaptor, ARDMA_REG_MAGIC));
		return -ENODEV;
	}
	adaptor->version = ardma_read32(adaptor, ARDMA_REG_VERSION);
	if (adaptor->version >> 16 != ARDMA_VERSION_MAJOR) {
		dev_err(dev, "the adaptor has version %u.%u, this driver is for %u.x\n",
			adaptor->version >> 16, adaptor->version & 0xffff, ARDMA_VERSION_MAJOR);
		return -ENODEV;
	}
	adaptor->node = ardma_read32(adaptor, ARDMA_REG_NODE_ID);
	adaptor->node_count = ardma_read32(adaptor, ARDMA_REG_NODE_COUNT);
	adaptor->window_size = ardma_read64(adaptor, ARDMA_REG_WINDOW_SIZE);
	adaptor->incarnation = ardma_read64(adaptor, ARDMA_REG_INCARNATION);
	adaptor->message_limit = ardma_read32(adaptor, ARDMA_REG_MESSAGE_LIMIT);
	split = ardma_read32(adaptor, ARDMA_REG_ADDRESS_SPLIT);
	adaptor->window_bits = split & 0xff;
	adaptor->bus_bits = split >> 8 & 0xff;
	adaptor->block_bits = split >> 16 & 0xff;

	if (adaptor->node_count < 1 || adaptor->node_count > ARDMA_NODE_ENTRIES ||
	    adaptor->node >= ARDMA_NODE_ENTRIES || adaptor->window_bits < PAGE_SHIFT ||
	    adaptor->window_bits > ARDMA_ADDR_NODE_SHIFT || adaptor->block_bits > 63 ||
	    adaptor->window_size != 1ULL << adaptor->window_bits) {
		dev_err(dev,
			"bad address map: node %u, %u windows of 0x%llx bytes, split 0x%08x\n",
			adaptor->node, adaptor->node_count, adaptor->window_size, split);
		return -ENODEV;
	}
	if (!adaptor->message_limit || adaptor->message_limit > ARDMA_MESSAGES_MAX) {
		dev_err(dev, "bad queue: %u messages\n", adaptor->message_limit);
		return -ENODEV;
	}
	return ardma_check_spaces(adaptor);
}

/* The adaptor has begun another life, in which nothing of the last one is left. */
static void ardma_begin_life(struct ardma_adaptor *adaptor, u64 incarnation)
{
	lockdep_assert_held_write(&adaptor->gate);
	lockdep_assert_held(&adaptor->command_lock);

	adaptor->incarnation = incarnation;
	adaptor->late.opcode = 0;
	WRITE_ONCE(adaptor->health, ARDMA_WELL);
	ardma_grants_lost(adaptor);
	ardma_queues_lost(adaptor);
	ardma_registrations_lost(adaptor);
	ardma_messages_lost(adaptor);
	ardma_failed_forget(adaptor);
}

/* Waits until it is ready, and finds out which life this is. */
static int ardma_await_ready(struct ardma_adaptor *adaptor, u64 *incarnation)
{
	unsigned long end = jiffies + msecs_to_jiffies(ARDMA_READY_MS);
	u32 status;

	for (;;) {
		bool late = time_after(jiffies, end);

		status = ardma_read32(adaptor, ARDMA_REG_STATUS);
		if (!PCI_POSSIBLE_ERROR(status) && (status & ARDMA_STATUS_READY))
			break;
		if (late) {
			dev_err(&adaptor->pdev->dev, "not ready: STATUS reads 0x%08x\n", status);
			return -EIO;
		}
		msleep(ARDMA_READY_POLL_MS);
	}
	*incarnation = ardma_read64(adaptor, ARDMA_REG_INCARNATION);
	return ardma_answers(adaptor) ? 0 : -EIO;
}

/*
 * Begins to use the adaptor, at first and after everything that may have reset it: where its
 * incarnation is a new one the windows of the old are gone.
 */
int ardma_start(struct ardma_adaptor *adaptor)
{
	u64 incarnation;
	int ret;

	lockdep_assert_held_write(&adaptor->gate);

	ret = ardma_await_ready(adaptor, &incarnation);
	if (ret) {
		WRITE_ONCE(adaptor->health, ARDMA_SILENT);
		return ret;
	}
	pci_set_master(adaptor->pdev);
	mutex_lock(&adaptor->command_lock);
	if (incarnation != adaptor->incarnation)
		ardma_begin_life(adaptor, incarnation);
	if (!ardma_is_the_same(adaptor)) {
		dev_err(&adaptor->pdev->dev,
			"another adaptor, with other windows: unbind and bind it\n");
		WRITE_ONCE(adaptor->health, ARDMA_STALE);
		ret = -ESTALE;
		goto out;
	}
	/*
	 * Never 0 or all-ones, with which the function answers nothing in its spaces. One that knows
	 * no sessions reads as 0, and its checks have 0 there too.
	 */
	ardma_write32(adaptor, ARDMA_REG_SESSION, (lower_32_bits(incarnation) & ~BIT(31)) | 1);
	adaptor->session = ardma_read32(adaptor, ARDMA_REG_SESSION);
	ardma_write32(adaptor, ARDMA_REG_QUEUE_VECTOR, adaptor->queue_vector);
	ardma_write32(adaptor, ARDMA_REG_EVENT_ENABLE,
		      ARDMA_FILE_EVENTS | ARDMA_EVENT_COMMAND | ARDMA_EVENT_QUEUE);
	/*
	 * Where this fails the nodes' memory can still be reached, so it is no reason to give up.
	 */
	ardma_command_probe_numa(adaptor);
	ardma_command_probe(adaptor);
out:
	mutex_unlock(&adaptor->command_lock);
	return ret;
}

/* Resets the function by its own register. True when it has acknowledged by a new incarnation. */
bool ardma_reset_function(struct ardma_adaptor *adaptor)
{
	unsigned long end = jiffies + msecs_to_jiffies(ARDMA_READY_MS);

	lockdep_assert_held_write(&adaptor->gate);

	ardma_config_restore(adaptor);
	ardma_write32(adaptor, ARDMA_REG_CONTROL, ARDMA_CONTROL_RESET);
	for (;;) {
		bool late = time_after(jiffies, end);
		u64 incarnation = ardma_read64(adaptor, ARDMA_REG_INCARNATION);

		if (!ardma_answers(adaptor))
			return false;
		if (incarnation != adaptor->incarnation) {
			mutex_lock(&adaptor->command_lock);
			ardma_begin_life(adaptor, incarnation);
			mutex_unlock(&adaptor->command_lock);
			return true;
		}
		if (late)
			return false;
		msleep(ARDMA_READY_POLL_MS);
	}
}

/*
 * Runs only between request_irq() and free_irq(), and not during a reset: needs no gate. The vector
 * is nobody else's, so every interrupt is ours, also one of messages only.
 */
irqreturn_t ardma_interrupt(int irq, void *data)
{
	struct ardma_adaptor *adaptor = data;
	u32 events = ardma_read32(adaptor, ARDMA_REG_EVENT);

	/* Where there is one vector for everything. */
	if (adaptor->message_vector == ARDMA_VECTOR_EVENTS)
		ardma_message_interrupt(irq, data);
	if (!events || PCI_POSSIBLE_ERROR(events))
		return IRQ_HANDLED;
	/* Cleared before anyone is woken: what happens from here on raises the vector again. */
	ardma_write32(adaptor, ARDMA_REG_EVENT, events);
	if (events & ARDMA_EVENT_COMMAND)
		complete(&adaptor->command_done);
	if (events & ARDMA_EVENT_QUEUE)
		ardma_queues_ready(adaptor);
	ardma_announce(adaptor, events & ARDMA_FILE_EVENTS);
	return IRQ_HANDLED;
}

/* Counts events for every open file and wakes those that wait. */
void ardma_announce(struct ardma_adaptor *adaptor, u32 events)
{
	unsigned long flags;
	int bit;

	if (!events)
		return;
	spin_lock_irqsave(&adaptor->event_lock, flags);
	for (bit = 0; bit < ARDMA_EVENT_BITS; bit++)
		if (events & BIT(bit))
			adaptor->event_counts[bit]++;
	spin_unlock_irqrestore(&adaptor->event_lock, flags);
	wake_up_all(&adaptor->event_wait);
}

/* The events that this file has not taken yet, and now takes where it is asked to. */
u32 ardma_pending_events(struct ardma_file *file, bool take)
{
	struct ardma_adaptor *adaptor = file->adaptor;
	u32 events = 0;
	int bit;

	spin_lock_irq(&adaptor->event_lock);
	for (bit = 0; bit < ARDMA_EVENT_BITS; bit++)
		if (adaptor->event_counts[bit] != file->events_seen[bit])
			events |= BIT(bit);
	if (take)
		memcpy(file->events_seen, adaptor->event_counts, sizeof(file->events_seen));
	spin_unlock_irq(&adaptor->event_lock);
	return events;
}
