//! A slab: items in numbered slots that are used again. It allocates no memory once its slots
//! suffice for the largest number of items at a time.

/// Slots of things under way.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    items: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { items: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slots<T> {
    /// Puts a thing into a slot that is free.
    pub(crate) fn put(&mut self, item: T) -> u32 {
        if let Some(slot) = self.free.pop() {
            self.items[slot as usize] = Some(item);
            return slot;
        }
        self.items.push(Some(item));
        self.items.len() as u32 - 1
    }

    /// The thing in a slot.
    ///
    /// # Panics
    /// If nothing is there: an event came twice, or for a thing that is gone.
    pub(crate) fn at(&mut self, slot: u32) -> &mut T {
        self.items[slot as usize].as_mut().expect("nothing is at this place")
    }

    pub(crate) fn take(&mut self, slot: u32) -> T {
        let item = self.items[slot as usize].take().expect("nothing is at this place");
        self.free.push(slot);
        item
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.items.iter().flatten()
    }

    pub(crate) fn len(&self) -> usize {
        self.items.len() - self.free.len()
    }
}
