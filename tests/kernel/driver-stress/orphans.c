// SPDX-License-Identifier: GPL-2.0-only
/*
 * Calls on an adaptor that has died: each is refused, and leaves nothing behind. Registers memory, says
 * so, and waits for a line, before which the adaptor has to be killed.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "calls.h"

/* A refused call may leave so much on average: KASAN keeps what was freed for a while. */
#define BYTES_EACH	64

static long slab_bytes(void)
{
	FILE *file = fopen("/proc/meminfo", "r");
	char line[100];
	long kilobytes = 0;

	while (file && fgets(line, sizeof(line), file))
		if (sscanf(line, "Slab: %ld kB", &kilobytes) == 1)
			break;
	if (file)
		fclose(file);
	return kilobytes * 1024;
}

void run_orphans(int count)
{
	int file = device_open(), i;
	long before, after;
	uint64_t doorbell;
	uint32_t key;
	char line[10];

	if (file < 0 || register_page(file, 0, &key)) {
		wrong("nothing can be registered: %s", strerror(errno));
		return;
	}
	printf("registered\n");
	fflush(stdout);
	if (!fgets(line, sizeof(line), stdin))
		return;
	before = slab_bytes();
	for (i = 0; i < count; i++)
		if (!create_queue(file, key, -1, &doorbell))
			wrong("a queue was made");
	after = slab_bytes();
	printf("kernel memory grew by %ld bytes\n", after - before);
	if (after - before > (long)count * BYTES_EACH)
		wrong("that is more than %d bytes a call", BYTES_EACH);
	close(file);
}
