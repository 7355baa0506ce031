// SPDX-License-Identifier: GPL-2.0-only
/*
 * The character device: open files, mappings of the spaces, and poll().
 */
#include <linux/mm.h>
#include <linux/poll.h>
#include <linux/slab.h>

#include "driver.h"

/* Pages mapped by one fault: aligned to, and not more than, this many. */
#define ARDMA_FAULT_PAGES	16

static int ardma_open(struct inode *inode, struct file *filp)
{
	/* The cdev, and so the adaptor, lives until after this file's release. */
	struct ardma_adaptor *adaptor = container_of(inode->i_cdev, struct ardma_adaptor, cdev);
	struct ardma_file *file;
	int ret;

	file = kzalloc(sizeof(*file), GFP_KERNEL_ACCOUNT);
	if (!file)
		return -ENOMEM;
	file->adaptor = adaptor;
	file->mapping = filp->f_mapping;
	ardma_pending_events(file, true);
	file->account = ardma_account_of(adaptor);
	if (!file->account) {
		ret = -ENOMEM;
		goto err_free;
	}
	ret = ida_alloc_min(&adaptor->domains, 1, GFP_KERNEL);
	if (ret < 0)
		goto err_free;
	file->domain = ret;

	ret = ardma_enter(adaptor);
	if (ret)
		goto err_domain;
	mutex_lock(&adaptor->files_lock);
	list_add_tail(&file->entry, &adaptor->files);
	mutex_unlock(&adaptor->files_lock);
	ardma_leave(adaptor);

	filp->private_data = file;
	return nonseekable_open(inode, filp);

err_domain:
	ida_free(&adaptor->domains, file->domain);
err_free:
	kfree(file);
	return ret;
}

/* A domain in which the adaptor may still hold something is never another file's. */
static void ardma_domain_free(struct ardma_file *file)
{
	struct ardma_adaptor *adaptor = file->adaptor;
	struct ardma_registration *registration;
	bool used = false;

	mutex_lock(&adaptor->command_lock);
	list_for_each_entry(registration, &adaptor->registrations, entry)
		if (registration->domain == file->domain)
			used = true;
	mutex_unlock(&adaptor->command_lock);
	if (!used)
		ida_free(&adaptor->domains, file->domain);
}

/*
 * Has the adaptor let go of all that is the file's: windows first, since these are what others
 * reach. Each thing takes the locks anew, so that nobody waits for more than one of them.
 */
static void ardma_give_back(struct ardma_file *file)
{
	struct ardma_adaptor *adaptor = file->adaptor;
	bool left = false;
	int more = 1;

	/* Removal has forgotten all of it. */
	while (more && !ardma_command_enter_always(adaptor)) {
		more = ardma_grants_withdraw(adaptor, file) ?:
		       ardma_queues_withdraw(adaptor, file) ?:
		       ardma_registrations_withdraw(adaptor, file);
		left |= more == 2;
		ardma_command_leave(adaptor);
		cond_resched();
	}
	/* Where an answer is missing, until it is there, or the function was reset. */
	if (left)
		ardma_settle(adaptor);
}

/* Comes when the last descriptor and the last mapping of this open file are gone. */
static int ardma_release(struct inode *inode, struct file *filp)
{
	struct ardma_file *file = filp->private_data;
	struct ardma_adaptor *adaptor = file->adaptor;

	ardma_give_back(file);
	ardma_domain_free(file);
	mutex_lock(&adaptor->files_lock);
	list_del(&file->entry);
	mutex_unlock(&adaptor->files_lock);
	free_page(file->sink);
	kfree(file);
	return 0;
}

static __poll_t ardma_poll(struct file *filp, struct poll_table_struct *table)
{
	struct ardma_file *file = filp->private_data;
	struct ardma_adaptor *adaptor = file->adaptor;
	__poll_t mask = 0;
	u32 events;

	poll_wait(filp, &adaptor->event_wait, table);
	if (READ_ONCE(adaptor->gone))
		return EPOLLHUP | EPOLLERR;
	events = ardma_pending_events(file, false);
	if (events)
		mask |= EPOLLIN | EPOLLRDNORM;
	if (events & (ARDMA_EVENT_ERROR | ARDMA_EVENT_RESET | ARDMA_EVENT_FAILED | ARDMA_EVENT_ACK))
		mask |= EPOLLPRI;
	return mask;
}

static u32 ardma_window_bits(struct ardma_adaptor *adaptor, u64 address)
{
	return address & ARDMA_ADDR_IO ? ARDMA_IO_WINDOW_BITS : adaptor->window_bits;
}

/* The bus address behind a page of the file, which mmap() has checked. */
static u64 ardma_page_address(struct ardma_adaptor *adaptor, unsigned long page)
{
	u64 address = (u64)page << PAGE_SHIFT;
	u64 node = (address & ARDMA_ADDR_NODE_MASK) >> ARDMA_ADDR_NODE_SHIFT;
	u32 window_bits = ardma_window_bits(adaptor, address);
	bool assurance = address & ARDMA_ADDR_ASSURANCE;
	/* Spaces of one BAR follow each other: assurance space, peek alias; I/O before them. */
	u64 part = address & ARDMA_ADDR_PEEK ? 1 : 0;
	int bar;

	if (address & ARDMA_ADDR_IO) {
		bar = ARDMA_BAR_IO;
		part += assurance;
	} else {
		bar = assurance ? ARDMA_BAR_ASSURANCE : ARDMA_BAR_ACCESS;
	}
	return pci_resource_start(adaptor->pdev, bar) +
	       ((part * adaptor->node_count + node) << window_bits) +
	       (address & ARDMA_ADDR_OFFSET_MASK);
}

/*
 * Maps the pages around the faulting one; so that mappings can be taken away and come back after
 * a reset.
 */
static vm_fault_t ardma_fault(struct vm_fault *vmf)
{
	struct vm_area_struct *vma = vmf->vma;
	struct ardma_file *file = vma->vm_private_data;
	struct ardma_adaptor *adaptor = file->adaptor;
	unsigned long span = ARDMA_FAULT_PAGES << PAGE_SHIFT;
	unsigned long fault = vmf->address & PAGE_MASK;
	unsigned long start = max(vma->vm_start, round_down(fault, span));
	unsigned long end = min(vma->vm_end - 1, round_down(fault, span) + span - 1);
	vm_fault_t ret;
	unsigned long at;

	if (ardma_enter(adaptor))
		return VM_FAULT_SIGBUS;
	/* The faulting page decides; its neighbours are there already or come later. */
	ret = vmf_insert_pfn(vma, fault, ardma_page_address(adaptor, vmf->pgoff) >> PAGE_SHIFT);
	for (at = start; ret == VM_FAULT_NOPAGE && at < end; at += PAGE_SIZE) {
		unsigned long page = vma->vm_pgoff + ((at - vma->vm_start) >> PAGE_SHIFT);

		if (at != fault &&
		    vmf_insert_pfn(vma, at, ardma_page_address(adaptor, page) >> PAGE_SHIFT) !=
			    VM_FAULT_NOPAGE)
			break;
	}
	ardma_leave(adaptor);
	return ret;
}

static const struct vm_operations_struct ardma_vm_operations = {
	.fault = ardma_fault,
};

static int ardma_mmap(struct file *filp, struct vm_area_struct *vma)
{
	struct ardma_file *file = filp->private_data;
	struct ardma_adaptor *adaptor = file->adaptor;
	u64 address = (u64)vma->vm_pgoff << PAGE_SHIFT;
	u64 node = (address & ARDMA_ADDR_NODE_MASK) >> ARDMA_ADDR_NODE_SHIFT;
	u64 offset = address & ARDMA_ADDR_OFFSET_MASK;
	u64 length = vma->vm_end - vma->vm_start;
	u64 window_size = 1ULL << ardma_window_bits(adaptor, address);
	bool assurance = address & ARDMA_ADDR_ASSURANCE;

	if (READ_ONCE(adaptor->gone))
		return -ENODEV;
	if (address >> PAGE_SHIFT == vma->vm_pgoff && (address & ARDMA_ADDR_DOORBELL))
		return ardma_doorbell_mmap(file, vma);
	/* A shift by PAGE_SHIFT that lost bits would be an address with reserved bits. */
	if (address >> PAGE_SHIFT != vma->vm_pgoff ||
	    (address & ~(ARDMA_ADDR_IO | ARDMA_ADDR_ASSURANCE | ARDMA_ADDR_PEEK |
			 ARDMA_ADDR_NODE_MASK | ARDMA_ADDR_OFFSET_MASK)) ||
	    ((address & ARDMA_ADDR_PEEK) && !assurance))
		return -EINVAL;
	/* VM_MAYSHARE, because a file opened read-only has no VM_SHARED. */
	if (!(vma->vm_flags & VM_MAYSHARE) || (vma->vm_flags & VM_EXEC))
		return -EINVAL;
	if (node >= adaptor->node_count || length > window_size || offset > window_size - length)
		return -ENXIO;
	if (assurance && (vma->vm_flags & VM_WRITE))
		return -EACCES;
	/* Its loads clear what others look for. */
	if (assurance && !(address & ARDMA_ADDR_PEEK) && !(filp->f_mode & FMODE_WRITE))
		return -EACCES;

	vm_flags_mod(vma, VM_IO | VM_PFNMAP | VM_DONTEXPAND | VM_DONTDUMP,
		     VM_MAYEXEC | (assurance ? VM_MAYWRITE : 0));
	vma->vm_page_prot = pgprot_noncached(vma->vm_page_prot);
	vma->vm_private_data = file;
	vma->vm_ops = &ardma_vm_operations;
	return 0;
}

/* Takes the pages of all mappings away; who touches one then comes to ardma_fault(). */
void ardma_zap_mappings(struct ardma_adaptor *adaptor)
{
	struct ardma_file *file;

	lockdep_assert_held_write(&adaptor->gate);

	mutex_lock(&adaptor->files_lock);
	list_for_each_entry(file, &adaptor->files, entry)
		unmap_mapping_range(file->mapping, 0, 0, 1);
	mutex_unlock(&adaptor->files_lock);
}

const struct file_operations ardma_file_operations = {
	.owner = THIS_MODULE,
	.open = ardma_open,
	.release = ardma_release,
	.unlocked_ioctl = ardma_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.mmap = ardma_mmap,
	.poll = ardma_poll,
};
