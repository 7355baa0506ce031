#![allow(clippy::arithmetic_side_effects)]

use super::super::files::Files;
use super::super::sharing::Sharing;
use super::*;
use proptest::prelude::*;
use std::fs::File;

/// Pages of the address space that the property test is about, and the most ranges in it.
const PAGES: u64 = 24;

fn files() -> [Arc<GuestFile>; 2] {
    let mut files = Files::new((usize::MAX, u64::MAX));
    [(); 2].map(|()| {
        let file =
            File::from(rustix::fs::memfd_create("ranges-test", rustix::fs::MemfdFlags::empty()).unwrap());
        file.set_len(2 * PAGES * 0x1000).unwrap();
        files.open(Arc::new(file), 0x1000, true, |_| Sharing::Shared).unwrap()
    })
}

/// What is mapped at a page: the file (`None`: no file), the page in it, and whether it may be written.
type Page = (Option<usize>, u64, bool);

fn range(files: &[Arc<GuestFile>], page: Page, pages: u64) -> Range {
    let (file, at, is_writable) = page;
    let backing =
        file.map_or(Backing::Unreachable, |file| Backing::File(Arc::clone(&files[file]), at * 0x1000));
    Range { len: pages * 0x1000, is_writable, backing }
}

fn found(files: &[Arc<GuestFile>], ranges: &Ranges, page: u64) -> Option<Page> {
    let (within, range) = ranges.at(page * 0x1000 + 0x800)?;
    Some(match &range.backing {
        Backing::Unreachable => (None, 0, range.is_writable),
        Backing::File(file, start) => {
            let number = files.iter().position(|known| Arc::ptr_eq(known, file));
            assert!(number.is_some());
            (number, (start + within) / 0x1000, range.is_writable)
        }
    })
}

/// Whether the page `next` goes on where `page` ends.
fn joins(page: Page, next: Page) -> bool {
    let follows = page.0.is_none() || page.1 + 1 == next.1;
    page.0 == next.0 && page.2 == next.2 && follows
}

#[derive(Clone, Debug)]
enum Step {
    Map { first: u64, pages: u64, file: Option<usize>, at: u64, is_writable: bool },
    Unmap { first: u64, pages: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    // Mostly such pages of the file as join.
    let at = prop_oneof![3 => Just(None), 1 => (0..PAGES).prop_map(Some)];
    let file = prop_oneof![4 => Just(Some(0)), 1 => Just(Some(1)), 1 => Just(None)];
    prop_oneof![
        3 => (0..PAGES, 1..4u64, file, at, prop::bool::weighted(0.8)).prop_map(
            |(first, pages, file, at, is_writable)| {
                let at = if file.is_some() { at.unwrap_or(first) } else { 0 };
                Step::Map { first, pages, file, at, is_writable }
            }
        ),
        1 => (0..PAGES, 1..6u64).prop_map(|(first, pages)| Step::Unmap { first, pages }),
    ]
}

proptest! {
    #[test]
    fn however_they_are_joined_and_cut_every_page_is_where_it_was_mapped(
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let files = files();
        let mut ranges = Ranges::new(usize::MAX);
        let mut pages: BTreeMap<u64, Page> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Map { first, pages: count, file, at, is_writable } => {
                    let page = (file, at, is_writable);
                    let is_free = (first..first + count).all(|page| !pages.contains_key(&page));
                    let result = ranges.insert(first * 0x1000, range(&files, page, count));
                    prop_assert_eq!(result, if is_free { Ok(()) } else { Err(Refused::Overlap) });
                    if is_free {
                        let in_file = u64::from(file.is_some());
                        pages.extend((0..count).map(|n| (first + n, (file, at + n * in_file, is_writable))));
                    }
                }
                Step::Unmap { first, pages: count } => {
                    prop_assert_eq!(ranges.remove(first * 0x1000, (first + count) * 0x1000 - 1), None);
                    pages.retain(|page, _| !(first..first + count).contains(page));
                }
            }
            for page in 0..PAGES + 8 {
                prop_assert_eq!(found(&files, &ranges, page), pages.get(&page).copied(), "page {}", page);
                let touched = ranges.touched(page * 0x1000, page * 0x1000 + 1).count();
                prop_assert_eq!(touched, usize::from(pages.contains_key(&page)));
            }
            // As few as there can be.
            let begins = pages.iter().filter(|&(page, &here)| {
                page.checked_sub(1).and_then(|before| pages.get(&before)).is_none_or(|&before| !joins(before, here))
            });
            prop_assert_eq!(ranges.len(), begins.count());
        }
    }
}

#[test]
fn there_are_never_more_than_there_may_be_and_what_is_unmapped_is_gone() {
    let files = files();
    let mut ranges = Ranges::new(3);
    let page = |at| range(&files, (Some(0), at, true), 1);
    for at in [0, 2, 4] {
        ranges.insert(at * 0x1000, page(at)).unwrap();
    }
    assert_eq!(ranges.insert(0x8000, page(8)), Err(Refused::TooMany));
    // What joins needs no room, and makes some.
    ranges.insert(0x1000, page(1)).unwrap();
    assert_eq!(ranges.len(), 2);
    ranges.insert(0x8000, page(8)).unwrap();
    ranges.insert(0x9000, page(9)).unwrap();
    // Now a hole in 0x0000 to 0x2fff has no room for what is behind it.
    assert_eq!(ranges.remove(0x1000, 0x17ff), Some((0x1800, 0x1800)));
    assert_eq!(ranges.len(), 3);
    for (address, is_there) in
        [(0xfff, true), (0x1000, false), (0x1800, false), (0x2fff, false), (0x4000, true)]
    {
        assert_eq!(ranges.at(address).is_some(), is_there, "{address:#x}");
    }
}

#[test]
fn a_range_may_be_cut_anywhere_up_to_the_ends_of_the_address_space() {
    let files = files();
    let mut ranges = Ranges::new(8);
    ranges.insert(0, range(&files, (Some(0), 0, true), 1)).unwrap();
    ranges.insert(u64::MAX - 0x1000, range(&files, (Some(0), 1, true), 1)).unwrap();
    assert_eq!(ranges.remove(0xff0, u64::MAX - 0x10), None);
    assert!(ranges.at(0xfef).is_some() && ranges.at(0xff0).is_none());
    assert!(ranges.at(u64::MAX - 0x10).is_none() && ranges.at(u64::MAX - 0xf).is_some());
    assert_eq!(ranges.remove(0, u64::MAX), None);
    assert_eq!(ranges.len(), 0);
}
