// SPDX-License-Identifier: GPL-2.0-only
/* The driver's calls, and what is wrong about an answer. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <time.h>

#include "calls.h"

/* What the kernel's allocator writes over freed memory. */
#define POISON		0x6b6b6b6b

struct tally *tally;
uint8_t memory[16 * PAGE] __attribute__((aligned(PAGE)));

void calls_init(void)
{
	tally = mmap(NULL, sizeof(*tally), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (tally == MAP_FAILED)
		abort();
}

void wrong(const char *format, ...)
{
	va_list arguments;

	tally->wrong++;
	va_start(arguments, format);
	printf("wrong: ");
	vprintf(format, arguments);
	printf("\n");
	fflush(stdout);
	va_end(arguments);
}

int device_open(void)
{
	return open(DEVICE, O_RDWR | O_CLOEXEC);
}

int call(int file, unsigned long number, void *argument)
{
	tally->calls++;
	if (ioctl(file, number, argument) >= 0)
		return 0;
	tally->refused++;
	switch (errno) {
	case EAGAIN:
	case EBUSY:
	case EFAULT:
	case EINTR:
	case EIO:
	case EMFILE:
	case ENOBUFS:
	case ENODEV:
	case ENOENT:
	case ENOMEM:
	case ENOSPC:
	case ESTALE:
	case ETIMEDOUT:
		break;
	default:
		wrong("call %#lx: %s", number, strerror(errno));
	}
	return errno;
}

int export_page(int file, int page, uint64_t wanted, uint64_t *offset)
{
	struct ardma_export argument = {
		.address = (uintptr_t)&memory[page * PAGE],
		.length = PAGE,
		.offset = wanted,
		.rights = ARDMA_RIGHT_READ | ARDMA_RIGHT_WRITE,
		.nodes = { ~0ULL },
		.name = "stress",
	};
	int error = call(file, ARDMA_IOC_EXPORT, &argument);

	if (!error && (argument.offset % PAGE ||
		       (wanted != ARDMA_OFFSET_ANY && argument.offset != wanted)))
		wrong("EXPORT at %#llx gives %#llx", (unsigned long long)wanted,
		      (unsigned long long)argument.offset);
	*offset = argument.offset;
	return error;
}

int unexport(int file, uint64_t offset)
{
	struct ardma_unexport argument = { .offset = offset };

	return call(file, ARDMA_IOC_UNEXPORT, &argument);
}

int register_page(int file, int page, uint32_t *key)
{
	struct ardma_register argument = {
		.address = (uintptr_t)&memory[page * PAGE],
		.length = PAGE,
		.rights = ARDMA_LOCAL_READ | ARDMA_LOCAL_WRITE,
	};
	int error = call(file, ARDMA_IOC_REGISTER, &argument);

	if (!error && (argument.offset || !argument.key || argument.key == POISON))
		wrong("REGISTER gives key %#x, offset %#llx", argument.key,
		      (unsigned long long)argument.offset);
	*key = argument.key;
	return error;
}

int deregister(int file, uint32_t key)
{
	struct ardma_deregister argument = { .key = key };

	return call(file, ARDMA_IOC_DEREGISTER, &argument);
}

int create_queue(int file, uint32_t key, int event, uint64_t *doorbell)
{
	struct ardma_create_queue argument = {
		.completion = PAGE / 2,
		.key = key,
		.entries_log2 = 2,
		.eventfd = event < 0 ? ARDMA_NO_EVENTFD : (uint32_t)event,
	};
	int error = call(file, ARDMA_IOC_CREATE_QUEUE, &argument);

	if (!error && (!(argument.doorbell & ARDMA_ADDR_DOORBELL) || argument.doorbell % PAGE ||
		       argument.queue == POISON))
		wrong("CREATE_QUEUE gives queue %#x, doorbell %#llx", argument.queue,
		      (unsigned long long)argument.doorbell);
	*doorbell = argument.doorbell;
	return error;
}

int destroy_queue(int file, uint64_t doorbell)
{
	struct ardma_destroy_queue argument = { .doorbell = doorbell };

	return call(file, ARDMA_IOC_DESTROY_QUEUE, &argument);
}

uint32_t random_below(uint32_t *state, uint32_t limit)
{
	*state = *state * 1664525 + 1013904223;
	return (*state >> 8) % limit;
}

double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}
