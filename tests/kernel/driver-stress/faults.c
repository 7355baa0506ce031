// SPDX-License-Identifier: GPL-2.0-only
/*
 * Each operation again and again, with the kernel's first allocation or copy in it failing, then its
 * second, until one run has no more than that and succeeds. An operation may fail, or do without; what
 * it leaves behind is for kmemleak to find, and the next run must find everything as before.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "calls.h"

/* More allocations than any operation has. */
#define MOST		2000
/* A function with a BAR of a page: q35's SATA controller, 00:1f.2. */
#define BAR_FUNCTION	(0x1f << 3 | 2)
#define BAR_NUMBER	5

/* What operations work on. */
static struct {
	const char *function;		/* the adaptor's, as its driver's files in sysfs take it */
	int file;
	int listener;
	int event;
	uint32_t key;
	uint64_t offset;
	uint64_t doorbell;
	void *mapping;
} on;

/* Runs without faults, before and after each run with one. */
static void need(int error, const char *what)
{
	if (error)
		wrong("%s fails without a fault: %s", what, strerror(error));
}

static int errno_of(long result)
{
	return result < 0 ? errno : 0;
}

static void set_file(void)
{
	on.file = device_open();
	need(errno_of(on.file), "open");
}

static void drop_file(void)
{
	close(on.file);
}

static void set_key(void)
{
	set_file();
	need(register_page(on.file, 0, &on.key), "REGISTER");
}

static void set_window(void)
{
	set_file();
	need(export_page(on.file, 0, ARDMA_OFFSET_ANY, &on.offset), "EXPORT");
}

static void set_queue(void)
{
	set_key();
	on.event = eventfd(0, EFD_CLOEXEC);
	need(create_queue(on.file, on.key, on.event, &on.doorbell), "CREATE_QUEUE");
}

static void drop_event(void)
{
	close(on.event);
}

static void drop_queue(void)
{
	drop_event();
	drop_file();
}

static void set_event(void)
{
	set_key();
	on.event = eventfd(0, EFD_CLOEXEC);
}

static int do_listen(void)
{
	struct ardma_listen argument = { .doorbells = 1, .nodes = { ~0ULL } };

	on.listener = ioctl(on.file, ARDMA_IOC_LISTEN, &argument);
	return errno_of(on.listener);
}

static void drop_listener(void)
{
	if (on.listener >= 0)
		close(on.listener);
	drop_file();
}

static void set_listener(void)
{
	set_file();
	need(do_listen(), "LISTEN");
	fcntl(on.listener, F_SETFL, O_NONBLOCK);
}

static int do_open(void)
{
	on.file = device_open();
	return errno_of(on.file);
}

static void drop_open(void)
{
	if (on.file >= 0)
		close(on.file);
}

static int do_close(void)
{
	return errno_of(close(on.file));
}

static int do_export(void)
{
	return export_page(on.file, 0, ARDMA_OFFSET_ANY, &on.offset);
}

static int do_unexport(void)
{
	return unexport(on.file, on.offset);
}

static int do_export_bar(void)
{
	struct ardma_export_bar argument = {
		.function = BAR_FUNCTION,
		.bar = BAR_NUMBER,
		.rights = ARDMA_RIGHT_READ,
		.offset = ARDMA_OFFSET_ANY,
		.nodes = { ~0ULL },
	};

	return call(on.file, ARDMA_IOC_EXPORT_BAR, &argument);
}

static int do_export_key(void)
{
	struct ardma_export_key argument = {
		.key = on.key,
		.rights = ARDMA_RIGHT_READ,
		.length = PAGE,
		.offset = ARDMA_OFFSET_ANY,
		.nodes = { ~0ULL },
	};

	return call(on.file, ARDMA_IOC_EXPORT_KEY, &argument);
}

static int do_register(void)
{
	return register_page(on.file, 0, &on.key);
}

static int do_deregister(void)
{
	return deregister(on.file, on.key);
}

static int do_create_queue(void)
{
	return create_queue(on.file, on.key, on.event, &on.doorbell);
}

static int do_destroy_queue(void)
{
	return destroy_queue(on.file, on.doorbell);
}

static int map(uint64_t offset, int protection)
{
	on.mapping = mmap(NULL, PAGE, protection, MAP_SHARED, on.file, offset);
	if (on.mapping == MAP_FAILED)
		return errno;
	*(volatile uint32_t *)on.mapping;
	return 0;
}

static int do_map_window(void)
{
	return map(ARDMA_ADDR(0, 0), PROT_READ);
}

static int do_map_doorbell(void)
{
	return map(on.doorbell, PROT_READ | PROT_WRITE);
}

static void drop_mapping(void)
{
	if (on.mapping != MAP_FAILED)
		munmap(on.mapping, PAGE);
	drop_file();
}

static void drop_doorbell(void)
{
	drop_event();
	drop_mapping();
}

static int do_mask(void)
{
	struct ardma_mask argument = { .doorbells = 1, .masked = 1 };

	return errno_of(ioctl(on.listener, ARDMA_IOC_MASK, &argument));
}

static int do_read(void)
{
	struct ardma_message message;
	long got = read(on.listener, &message, sizeof(message));

	return got < 0 && errno != EAGAIN ? errno : 0;
}

static int do_poll(void)
{
	struct pollfd polled = { .fd = on.file, .events = POLLIN };

	return errno_of(poll(&polled, 1, 0));
}

static int do_info(void)
{
	struct ardma_info argument;

	return call(on.file, ARDMA_IOC_INFO, &argument);
}

static int do_node(void)
{
	struct ardma_node argument = { .node = 1 };

	return call(on.file, ARDMA_IOC_NODE, &argument);
}

static int do_window(void)
{
	struct ardma_window argument = {};

	return call(on.file, ARDMA_IOC_WINDOW, &argument);
}

static int do_overflow_ack(void)
{
	struct ardma_overflow_ack argument = { .node = 1 };

	return call(on.file, ARDMA_IOC_OVERFLOW_ACK, &argument);
}

static int do_events(void)
{
	struct ardma_events argument;

	return call(on.file, ARDMA_IOC_EVENTS, &argument);
}

static int do_inventory(void)
{
	struct ardma_inventory argument = { .node = 1 };

	return call(on.file, ARDMA_IOC_INVENTORY, &argument);
}

static int do_range(void)
{
	struct ardma_range argument = { .last = PAGE };

	return call(on.file, ARDMA_IOC_RANGE, &argument);
}

/* A block fails first, so that there is something to tell. */
static void set_failed(void)
{
	set_file();
	on.mapping = mmap(NULL, PAGE, PROT_WRITE, MAP_SHARED, on.file, ARDMA_ADDR(0, 0));
	if (on.mapping != MAP_FAILED)
		*(volatile uint32_t *)on.mapping = 0;
}

static int do_failed(void)
{
	struct ardma_failed argument;
	int error = call(on.file, ARDMA_IOC_FAILED, &argument);

	return error == ENOENT ? 0 : error;
}

static int do_spaces(void)
{
	struct ardma_spaces argument;

	return call(on.file, ARDMA_IOC_SPACES, &argument);
}

static int do_reset(void)
{
	return call(on.file, ARDMA_IOC_RESET, NULL);
}

/* A file of the driver in sysfs, with the function's name written to it. */
static int tell_driver(const char *name)
{
	char path[100];
	int file, error;

	snprintf(path, sizeof(path), "/sys/bus/pci/drivers/assured_rdma/%s", name);
	file = open(path, O_WRONLY | O_CLOEXEC);
	if (file < 0)
		return errno;
	error = errno_of(write(file, on.function, strlen(on.function)));
	close(file);
	return error;
}

static int do_bind(void)
{
	return tell_driver("bind");
}

static int do_unbind(void)
{
	return tell_driver("unbind");
}

static void set_unbound(void)
{
	need(do_unbind(), "unbind");
}

/* Bound again whatever has come of it. */
static void drop_bound(void)
{
	if (access(DEVICE, F_OK))
		need(do_bind(), "bind");
}

static void nothing(void)
{
}

static const struct operation {
	const char *name;
	void (*before)(void);
	int (*run)(void);
	void (*after)(void);
} operations[] = {
	{ "open", nothing, do_open, drop_open },
	{ "close", set_queue, do_close, drop_event },
	{ "poll", set_file, do_poll, drop_file },
	{ "map a window", set_file, do_map_window, drop_mapping },
	{ "map a doorbell", set_queue, do_map_doorbell, drop_doorbell },
	{ "INFO", set_file, do_info, drop_file },
	{ "NODE", set_file, do_node, drop_file },
	{ "EXPORT", set_file, do_export, drop_file },
	{ "EXPORT_BAR", set_file, do_export_bar, drop_file },
	{ "EXPORT_KEY", set_key, do_export_key, drop_file },
	{ "UNEXPORT", set_window, do_unexport, drop_file },
	{ "WINDOW", set_window, do_window, drop_file },
	{ "OVERFLOW_ACK", set_file, do_overflow_ack, drop_file },
	{ "EVENTS", set_file, do_events, drop_file },
	{ "INVENTORY", set_file, do_inventory, drop_file },
	{ "LISTEN", set_file, do_listen, drop_listener },
	{ "MASK", set_listener, do_mask, drop_listener },
	{ "read", set_listener, do_read, drop_listener },
	{ "RANGE", set_file, do_range, drop_file },
	{ "FAILED", set_failed, do_failed, drop_mapping },
	{ "SPACES", set_file, do_spaces, drop_file },
	{ "REGISTER", set_file, do_register, drop_file },
	{ "DEREGISTER", set_key, do_deregister, drop_file },
	{ "CREATE_QUEUE", set_event, do_create_queue, drop_queue },
	{ "DESTROY_QUEUE", set_queue, do_destroy_queue, drop_queue },
	{ "RESET", set_queue, do_reset, drop_queue },
	{ "bind", set_unbound, do_bind, drop_bound },
	{ "unbind", nothing, do_unbind, drop_bound },
};

/*
 * The kernel counts down at each place that can fail, also in these two: they may take the fault that
 * the operation had no place for.
 */
static void set_nth(int control, int nth)
{
	char text[20];
	int length = snprintf(text, sizeof(text), "%d", nth);

	if (pwrite(control, text, length, 0) != length && errno != EFAULT)
		wrong("fail-nth: %s", strerror(errno));
}

/* What is left of the count; 0 where the fault was the operation's. */
static int get_nth(int control)
{
	char text[20] = "1";

	if (pread(control, text, sizeof(text) - 1, 0) <= 0 && errno != EFAULT)
		wrong("fail-nth: %s", strerror(errno));
	return atoi(text);
}

/* How many faults there were until it succeeded without one. */
static int with_faults(const struct operation *operation, int control)
{
	int nth, left, error;

	for (nth = 1; nth < MOST; nth++) {
		operation->before();
		set_nth(control, nth);
		error = operation->run();
		left = get_nth(control);
		if (left)
			set_nth(control, 0);
		operation->after();
		if (left)
			break;
	}
	need(error, operation->name);
	return nth - 1;
}

void run_faults(const char *function)
{
	int control = open("/proc/thread-self/fail-nth", O_RDWR | O_CLOEXEC), faults, sum = 0;
	size_t i;

	if (control < 0) {
		wrong("the kernel has no fail-nth");
		return;
	}
	on.function = function;
	for (i = 0; i < sizeof(operations) / sizeof(operations[0]); i++) {
		faults = with_faults(&operations[i], control);
		printf("%s: %d faults\n", operations[i].name, faults);
		fflush(stdout);
		sum += faults;
	}
	printf("%d faults\n", sum);
	if (!sum)
		wrong("no fault was injected");
}
