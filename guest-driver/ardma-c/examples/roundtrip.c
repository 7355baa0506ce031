/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes to memory that another node exports, reads it back and compares: roundtrip DEVICE NODE OFFSET. The memory
 * there has to be exported with all rights, 4 KiB of it.
 */
#include <ardma.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BYTES 2048

static int fail(const char *what)
{
	fprintf(stderr, "roundtrip: %s: %s\n", what, ardma_error());
	return 1;
}

/* Takes the next completion. */
static int ended(ardma_queue *queue, struct ardma_completion *done)
{
	char text[128];

	if (ardma_wait(queue, done, 10000) != 1)
		return fail("waiting");
	if (!done->status)
		return 0;
	fprintf(stderr, "roundtrip: operation %u: %s\n", (unsigned int)done->cookie,
		ardma_explain(done->status, text, sizeof(text)));
	return 1;
}

static int run(ardma_queue *queue, ardma_region *region, unsigned char *memory, unsigned int node,
	       uint64_t offset)
{
	struct ardma_completion done;
	uint64_t former;

	memset(memory, 0x5a, BYTES);
	if (ardma_write(queue, region, 0, BYTES, node, offset, 1) ||
	    ardma_read(queue, node, offset, region, BYTES, BYTES, 2))
		return fail("posting");
	if (ended(queue, &done) || ended(queue, &done))
		return 1;
	if (memcmp(memory, memory + BYTES, BYTES)) {
		fprintf(stderr, "roundtrip: what was read back is not what was written\n");
		return 1;
	}
	if (ardma_fetch_add(queue, node, offset, 5, 3) || ended(queue, &done))
		return fail("adding");
	memcpy(&former, memory, sizeof(former));
	if (done.former != former) {
		fprintf(stderr, "roundtrip: the former value is wrong\n");
		return 1;
	}
	printf("%u bytes there and back\n", BYTES);
	return 0;
}

int main(int argc, char **argv)
{
	unsigned char *memory = malloc(2 * BYTES);
	ardma_device *device;
	ardma_region *region;
	ardma_queue *queue;
	int ret;

	if (argc != 4 || !memory) {
		fprintf(stderr, "usage: roundtrip DEVICE NODE OFFSET\n");
		return 2;
	}
	device = ardma_open(argv[1]);
	if (!device)
		return fail(argv[1]);
	region = ardma_register(device, memory, 2 * BYTES, ARDMA_READABLE | ARDMA_WRITABLE);
	if (!region)
		return fail("registering");
	queue = ardma_connect(device, 16);
	if (!queue)
		return fail("connecting");
	ret = run(queue, region, memory, (unsigned int)strtoul(argv[2], NULL, 0), strtoull(argv[3], NULL, 0));
	ardma_disconnect(queue);
	if (ardma_deregister(region))
		ret = fail("deregistering");
	ardma_close(device);
	free(memory);
	return ret;
}
