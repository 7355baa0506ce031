// SPDX-License-Identifier: GPL-2.0-only
/*
 * Processes that make what they can, map it, fork, and die in the middle of it. What comes of it while
 * the adaptor is stopped, reset or dead is any documented errno; nobody hangs, and nobody dies of
 * anything but a kill, or the SIGBUS of an adaptor that is gone.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "calls.h"

static void use_window(int file, unsigned int peer)
{
	volatile uint64_t *window = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file,
					 ARDMA_ADDR(peer, 0));

	if (window != MAP_FAILED)
		window[0] = window[1];
}

static void use_queue(int file, int page, int event, uint32_t *key)
{
	volatile uint64_t *bell;
	uint64_t doorbell;

	if (register_page(file, page, key) || create_queue(file, *key, event, &doorbell))
		return;
	bell = mmap(NULL, PAGE, PROT_WRITE, MAP_SHARED, file, doorbell);
	if (bell != MAP_FAILED)
		*bell = 0;
}

static _Noreturn void member(uint32_t state, unsigned int peer)
{
	int file = device_open(), event = eventfd(0, EFD_CLOEXEC), page;
	uint64_t offset;
	uint32_t key = 0;

	if (file < 0)
		_exit(0);
	for (page = random_below(&state, 8); page >= 0; page--) {
		export_page(file, page, ARDMA_OFFSET_ANY, &offset);
		use_queue(file, 8 + page, event, &key);
	}
	use_window(file, peer);
	/* The last of the two to go closes the file, and both may go at once. */
	if (!fork()) {
		deregister(file, key);
		_exit(0);
	}
	if (random_below(&state, 2))
		kill(getpid(), SIGKILL);
	while (random_below(&state, 4)) {
		export_page(file, 0, ARDMA_OFFSET_ANY, &offset);
		unexport(file, offset);
	}
	_exit(0);
}

static void meet(pid_t child)
{
	int status;

	if (waitpid(child, &status, 0) != child)
		wrong("waitpid: %s", strerror(errno));
	else if (WIFSIGNALED(status) && WTERMSIG(status) != SIGKILL && WTERMSIG(status) != SIGBUS)
		wrong("a process died of signal %d", WTERMSIG(status));
}

/* Members follow each other; some are killed after some time. How many there were. */
static unsigned long line_of_members(double end, uint32_t state, unsigned int peer)
{
	unsigned long count = 0;

	while (now() < end) {
		struct timespec wait = { .tv_nsec = random_below(&state, 100) * 1000000 };
		pid_t child = fork();

		if (!child)
			member(state, peer);
		if (random_below(&state, 2)) {
			nanosleep(&wait, NULL);
			kill(child, SIGKILL);
		}
		meet(child);
		count++;
	}
	return count;
}

void run_family(double seconds, int processes, unsigned int peer)
{
	double end = now() + seconds;
	atomic_ulong *members = mmap(NULL, sizeof(*members), PROT_READ | PROT_WRITE,
				     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t children[processes];
	int i;

	for (i = 0; i < processes; i++) {
		children[i] = fork();
		if (!children[i]) {
			*members += line_of_members(end, i, peer);
			_exit(0);
		}
	}
	for (i = 0; i < processes; i++)
		meet(children[i]);
	printf("%lu processes\n", *members);
}
