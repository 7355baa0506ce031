/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The driver's calls, as the programs of this folder make them: each gives 0 or an errno, and an
 * answer that no call may give is counted, and said, as wrong.
 */
#ifndef STRESS_CALLS_H
#define STRESS_CALLS_H

#include <stdatomic.h>
#include <stdint.h>

#include <assured_rdma.h>

#define DEVICE		"/dev/ardma0"
#define PAGE		4096ULL

/* Shared by all processes. */
struct tally {
	atomic_ulong calls;
	atomic_ulong refused;		/* ended with an errno */
	atomic_ulong wrong;
};

extern struct tally *tally;

/* What is exported and registered, page by page. */
extern uint8_t memory[16 * PAGE];

void calls_init(void);
void wrong(const char *format, ...) __attribute__((format(printf, 1, 2)));

int device_open(void);
int call(int file, unsigned long number, void *argument);
int export_page(int file, int page, uint64_t wanted, uint64_t *offset);
int unexport(int file, uint64_t offset);
int register_page(int file, int page, uint32_t *key);
int deregister(int file, uint32_t key);
int create_queue(int file, uint32_t key, int event, uint64_t *doorbell);
int destroy_queue(int file, uint64_t doorbell);

uint32_t random_below(uint32_t *state, uint32_t limit);
double now(void);

/* The kinds of stress: see main.c. */
void run_race(double seconds);
void run_family(double seconds, int processes, unsigned int peer);
void run_orphans(int count);
void run_faults(const char *function);

#endif /* STRESS_CALLS_H */
