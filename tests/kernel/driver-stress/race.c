// SPDX-License-Identifier: GPL-2.0-only
/*
 * Threads of one file. Half of them make windows, keys and queues. The other half guess what the next
 * call will give, and remove it: where they are right, before the thread that made it was told.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "calls.h"

#define THREADS		6
#define SLOTS		4
#define BASE		0x10000ULL
/* What a thread leaves to the others for so many rounds, and then removes itself. */
#define OLD		4
/* The adaptor's slots for keys that are looked at; the next key of a slot is one generation on. */
#define KEYS		16
#define GENERATION	(1U << 12)
/* Of doorbells: the next one has the next serial number. */
#define SERIAL		(1ULL << 28)
#define QUEUES		8

static int file;
static double end;
static atomic_uint keys[KEYS];
static atomic_ulong doorbell;
static atomic_ulong made, removed;

static void *make(void *argument)
{
	uintptr_t thread = (uintptr_t)argument;
	uint32_t state = thread, key[OLD] = {};
	uint64_t offset, bell[OLD] = {};
	unsigned int i;

	/* Each page has one key at most: the kernel's debugging of DMA cannot count more than seven. */
	for (i = 0; now() < end; i = (i + 1) % OLD) {
		int slot = random_below(&state, SLOTS);

		made += !export_page(file, slot, BASE + slot * PAGE, &offset);
		destroy_queue(file, bell[i]);
		deregister(file, key[i]);
		bell[i] = 0;
		if (register_page(file, SLOTS + thread / 2 * OLD + i, &key[i]))
			continue;
		made++;
		keys[key[i] % KEYS] = key[i];
		if (create_queue(file, key[i], -1, &bell[i]))
			continue;
		made++;
		doorbell = bell[i];
	}
	return NULL;
}

static void *guess(void *argument)
{
	uint32_t state = (uintptr_t)argument;

	while (now() < end) {
		uint32_t key = keys[random_below(&state, KEYS)];
		uint64_t bell = doorbell - doorbell % SERIAL;

		removed += !unexport(file, BASE + random_below(&state, SLOTS) * PAGE);
		removed += !destroy_queue(file, bell + random_below(&state, 2) * SERIAL +
						random_below(&state, QUEUES) * PAGE);
		removed += !deregister(file, key + random_below(&state, 2) * GENERATION);
	}
	return NULL;
}

void run_race(double seconds)
{
	pthread_t threads[THREADS];
	uintptr_t i;

	file = device_open();
	if (file < 0) {
		wrong("the device cannot be opened");
		return;
	}
	end = now() + seconds;
	for (i = 0; i < THREADS; i++)
		if (pthread_create(&threads[i], NULL, i % 2 ? guess : make, (void *)i))
			abort();
	for (i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	close(file);
	printf("made %lu, removed by a guess %lu\n", made, removed);
}
