// SPDX-License-Identifier: GPL-2.0-only
/*
 * User memory for a window or for the engine: pinned for long and charged to its process, mapped for DMA, and
 * described as a list of runs of bus addresses.
 */
#include <linux/dma-map-ops.h>
#include <linux/gfp.h>
#include <linux/iommu.h>
#include <linux/mm.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/uaccess.h>

#include "driver.h"

/* Pages pinned in one go; between two of them a killed process gives up. */
#define ARDMA_PIN_BATCH		512

/*
 * Both sides use the memory all the time: copies to and fro at map and unmap would overwrite what
 * the other has written. Mappings that would need them are refused.
 */
#define ARDMA_MEMORY_ATTRIBUTES	DMA_ATTR_SKIP_CPU_SYNC

struct ardma_run {
	__le64 address;
	__le64 length;
};

struct ardma_list_contents {
	struct ardma_run runs[ARDMA_LIST_PAGE_RUNS];
	__le64 next;
	__le64 zero;
};

static_assert(sizeof(struct ardma_list_contents) == ARDMA_LIST_PAGE_SIZE);
static_assert(ARDMA_LIST_PAGE_SIZE <= PAGE_SIZE);

/* A page, all zero. */
int ardma_page_create(struct ardma_adaptor *adaptor, struct ardma_page *page)
{
	return ardma_page_create_on(adaptor, page, NUMA_NO_NODE);
}

/* The same, of a NUMA node's own memory, or of any. */
int ardma_page_create_on(struct ardma_adaptor *adaptor, struct ardma_page *page, int node)
{
	struct device *dev = &adaptor->pdev->dev;
	gfp_t flags = GFP_KERNEL_ACCOUNT | __GFP_ZERO;
	struct page *pages;

	if (node == NUMA_NO_NODE)
		pages = alloc_page(flags);
	else
		pages = alloc_pages_node(node, flags | __GFP_THISNODE | __GFP_NOWARN, 0);
	if (!pages)
		return -ENOMEM;
	page->contents = page_address(pages);
	page->bus = dma_map_single(dev, page->contents, PAGE_SIZE, DMA_BIDIRECTIONAL);
	if (!dma_mapping_error(dev, page->bus))
		return 0;
	free_page((unsigned long)page->contents);
	page->contents = NULL;
	return -ENOMEM;
}

/* To be kept is memory that the adaptor may still reach: nobody gets it any more. */
void ardma_page_destroy(struct ardma_adaptor *adaptor, struct ardma_page *page, bool keep)
{
	if (!page->contents)
		return;
	dma_unmap_single(&adaptor->pdev->dev, page->bus, PAGE_SIZE, DMA_BIDIRECTIONAL);
	if (!keep)
		free_page((unsigned long)page->contents);
	page->contents = NULL;
}

/* After this kernel wrote to it. */
void ardma_page_to_device(struct ardma_adaptor *adaptor, const struct ardma_page *page)
{
	dma_sync_single_for_device(&adaptor->pdev->dev, page->bus, PAGE_SIZE, DMA_BIDIRECTIONAL);
}

/* Before this kernel reads what the adaptor wrote to it. */
void ardma_page_to_cpu(struct ardma_adaptor *adaptor, const struct ardma_page *page)
{
	dma_sync_single_for_cpu(&adaptor->pdev->dev, page->bus, PAGE_SIZE, DMA_BIDIRECTIONAL);
}

/* Charges this process; 0, or -ENOMEM beyond what it may lock. */
static int ardma_memory_charge(struct ardma_memory *memory)
{
	struct mm_struct *mm = current->mm;
	unsigned long limit = rlimit(RLIMIT_MEMLOCK) >> PAGE_SHIFT;
	s64 total = atomic64_add_return(memory->page_count, &mm->pinned_vm);

	if (total > limit && !capable(CAP_IPC_LOCK)) {
		atomic64_sub(memory->page_count, &mm->pinned_vm);
		return -ENOMEM;
	}
	mmgrab(mm);
	memory->mm = mm;
	return 0;
}

static void ardma_memory_uncharge(struct ardma_memory *memory)
{
	atomic64_sub(memory->page_count, &memory->mm->pinned_vm);
	mmdrop(memory->mm);
	memory->mm = NULL;
}

/* Pins all pages; 0 or an error with none pinned. */
static int ardma_pin_pages(unsigned long address, struct page **pages, unsigned long count,
			   bool writable)
{
	unsigned int flags = FOLL_LONGTERM | (writable ? FOLL_WRITE : 0);
	unsigned long done = 0;
	int ret;

	while (done < count) {
		int batch = min_t(unsigned long, count - done, ARDMA_PIN_BATCH);

		if (fatal_signal_pending(current)) {
			ret = -EINTR;
			goto err_unpin;
		}
		ret = pin_user_pages_fast(address + (done << PAGE_SHIFT), batch, flags,
					  pages + done);
		if (ret <= 0) {
			ret = ret ?: -EFAULT;
			goto err_unpin;
		}
		done += ret;
		cond_resched();
	}
	return 0;

err_unpin:
	unpin_user_pages(pages, done);
	return ret;
}

/*
 * Pins length bytes of this process at address, both multiples of the page size and length not 0.
 */
int ardma_memory_pin(struct ardma_memory *memory, u64 address, u64 length, bool writable)
{
	struct page **pages;
	int ret;

	if (address > ULONG_MAX || !access_ok(u64_to_user_ptr(address), length))
		return -EFAULT;
	if (length >> PAGE_SHIFT > INT_MAX / sizeof(*pages))
		return -ENOMEM;
	memory->page_count = length >> PAGE_SHIFT;
	memory->writable = writable;

	ret = ardma_memory_charge(memory);
	if (ret)
		return ret;
	pages = kvmalloc_array(memory->page_count, sizeof(*pages), GFP_KERNEL_ACCOUNT);
	if (!pages) {
		ret = -ENOMEM;
		goto err_uncharge;
	}
	ret = ardma_pin_pages(address, pages, memory->page_count, writable);
	if (ret)
		goto err_free;
	ret = sg_alloc_table_from_pages(&memory->pages, pages, memory->page_count, 0, length,
					GFP_KERNEL_ACCOUNT);
	if (ret)
		goto err_unpin;
	kvfree(pages);
	return 0;

err_unpin:
	unpin_user_pages(pages, memory->page_count);
err_free:
	kvfree(pages);
err_uncharge:
	ardma_memory_uncharge(memory);
	return ret;
}

/* Gives the memory back. What another node may have written to is marked as changed. */
void ardma_memory_unpin(struct ardma_memory *memory)
{
	struct scatterlist *sg;
	unsigned int i;

	for_each_sgtable_sg(&memory->pages, sg, i) {
		unpin_user_page_range_dirty_lock(sg_page(sg), sg->length >> PAGE_SHIFT,
						 memory->writable);
		cond_resched();
	}
	sg_free_table(&memory->pages);
	ardma_memory_uncharge(memory);
}

/*
 * Lets go of memory that the adaptor may still reach. The pages stay pinned for good; without its
 * mapping an IOMMU, if there is one, keeps the adaptor out of them.
 */
void ardma_memory_abandon(struct ardma_adaptor *adaptor, struct ardma_memory *memory)
{
	ardma_memory_unmap(adaptor, memory);
	sg_free_table(&memory->pages);
	mmdrop(memory->mm);
	memory->mm = NULL;
}

/* What an IOMMU, if there is one, lets the adaptor do. */
static enum dma_data_direction ardma_memory_direction(const struct ardma_memory *memory)
{
	return memory->writable ? DMA_BIDIRECTIONAL : DMA_TO_DEVICE;
}

/*
 * Whether the kernel has put a copy between this piece and the adaptor. Behind an IOMMU pieces say
 * so themselves; dma_need_sync() is true of all of them there where the kernel debugs DMA.
 */
static bool ardma_is_copied(struct device *dev, struct scatterlist *sg)
{
	struct iommu_domain *domain = iommu_get_domain_for_dev(dev);

	if (domain && (domain->type & __IOMMU_DOMAIN_PAGING))
		return !dev_is_dma_coherent(dev) || sg_dma_is_swiotlb(sg);
	return dma_need_sync(dev, sg_dma_address(sg));
}

/* Maps pinned memory for DMA. Refuses where the kernel would put copies in between. */
int ardma_memory_map(struct ardma_adaptor *adaptor, struct ardma_memory *memory)
{
	struct device *dev = &adaptor->pdev->dev;
	struct scatterlist *sg;
	unsigned int i;
	int ret;

	ret = dma_map_sgtable(dev, &memory->pages, ardma_memory_direction(memory),
			      ARDMA_MEMORY_ATTRIBUTES);
	if (ret)
		return ret;
	memory->mapped = true;
	for_each_sgtable_dma_sg(&memory->pages, sg, i) {
		if (ardma_is_copied(dev, sg) ||
		    !IS_ALIGNED(sg_dma_address(sg) | sg_dma_len(sg), ARDMA_MEMORY_GRAIN)) {
			dev_err_ratelimited(dev,
					    "memory refused: DMA of this guest goes through copies\n");
			ardma_memory_unmap(adaptor, memory);
			return -EOPNOTSUPP;
		}
	}
	return 0;
}

void ardma_memory_unmap(struct ardma_adaptor *adaptor, struct ardma_memory *memory)
{
	if (memory->mapped)
		dma_unmap_sgtable(&adaptor->pdev->dev, &memory->pages,
				  ardma_memory_direction(memory), ARDMA_MEMORY_ATTRIBUTES);
	memory->mapped = false;
}

static void ardma_put_run(struct ardma_run_list *list, u32 index, u64 address, u64 length)
{
	struct ardma_list_contents *contents = list->pages[index / ARDMA_LIST_PAGE_RUNS].contents;
	struct ardma_run *run = &contents->runs[index % ARDMA_LIST_PAGE_RUNS];

	run->address = cpu_to_le64(address);
	run->length = cpu_to_le64(length);
}

/*
 * Counts the runs of size bytes from start on, neighbours joined, and writes them where there is a
 * list.
 */
static u32 ardma_walk_runs(struct ardma_memory *memory, u64 start, u64 size,
			   struct ardma_run_list *list)
{
	u64 address = 0, length = 0, at = 0;
	struct scatterlist *sg;
	u32 count = 0;
	unsigned int i;

	for_each_sgtable_dma_sg(&memory->pages, sg, i) {
		/* What of this piece is meant. */
		u64 from = max(at, start);
		u64 to = min(at + sg_dma_len(sg), start + size);
		dma_addr_t piece = sg_dma_address(sg) + (from - at);

		at += sg_dma_len(sg);
		if (from >= to)
			continue;
		if (!count || piece != address + length) {
			address = piece;
			length = 0;
			count++;
		}
		length += to - from;
		if (list)
			ardma_put_run(list, count - 1, address, length);
	}
	return count;
}

/* Empty pages for run_count runs. */
static int ardma_run_list_allocate(struct ardma_adaptor *adaptor, struct ardma_run_list *list)
{
	struct ardma_list_contents *contents;
	u32 i;
	int ret;

	list->page_count = DIV_ROUND_UP(list->run_count, ARDMA_LIST_PAGE_RUNS);
	list->pages = kvcalloc(list->page_count, sizeof(*list->pages), GFP_KERNEL_ACCOUNT);
	if (!list->pages)
		return -ENOMEM;
	for (i = 0; i < list->page_count; i++) {
		ret = ardma_page_create(adaptor, &list->pages[i]);
		if (ret) {
			ardma_run_list_destroy(adaptor, list, false);
			return ret;
		}
		if (!i)
			continue;
		contents = list->pages[i - 1].contents;
		contents->next = cpu_to_le64(list->pages[i].bus);
	}
	return 0;
}

/* The list is complete. */
static void ardma_run_list_to_device(struct ardma_adaptor *adaptor,
				     const struct ardma_run_list *list)
{
	u32 i;

	for (i = 0; i < list->page_count; i++)
		ardma_page_to_device(adaptor, &list->pages[i]);
}

/* The runs of a part of mapped memory. */
int ardma_run_list_create_part(struct ardma_adaptor *adaptor, struct ardma_memory *memory, u64 start,
			       u64 length, struct ardma_run_list *list)
{
	int ret;

	list->run_count = ardma_walk_runs(memory, start, length, NULL);
	ret = ardma_run_list_allocate(adaptor, list);
	if (ret)
		return ret;
	ardma_walk_runs(memory, start, length, list);
	ardma_run_list_to_device(adaptor, list);
	return 0;
}

int ardma_run_list_create(struct ardma_adaptor *adaptor, struct ardma_memory *memory,
			  struct ardma_run_list *list)
{
	return ardma_run_list_create_part(adaptor, memory, 0,
					  (u64)memory->page_count << PAGE_SHIFT, list);
}

/* A list of one run. */
int ardma_run_list_create_one(struct ardma_adaptor *adaptor, u64 address, u64 length,
			      struct ardma_run_list *list)
{
	int ret;

	list->run_count = 1;
	ret = ardma_run_list_allocate(adaptor, list);
	if (ret)
		return ret;
	ardma_put_run(list, 0, address, length);
	ardma_run_list_to_device(adaptor, list);
	return 0;
}

/* Also for a list that is already destroyed. Its pages are kept as in ardma_page_destroy(). */
void ardma_run_list_destroy(struct ardma_adaptor *adaptor, struct ardma_run_list *list, bool keep)
{
	u32 i;

	if (!list->pages)
		return;
	for (i = 0; i < list->page_count; i++)
		ardma_page_destroy(adaptor, &list->pages[i], keep);
	kvfree(list->pages);
	list->pages = NULL;
}

dma_addr_t ardma_run_list_bus(const struct ardma_run_list *list)
{
	return list->pages[0].bus;
}
