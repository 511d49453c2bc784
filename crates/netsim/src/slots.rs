//! Things under way, each at a numbered place that is used again: no allocation once there are as
//! many places as there are ever things at a time.

/// Places of things under way.
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
    /// Puts a thing at a place that is free.
    pub(crate) fn put(&mut self, item: T) -> u32 {
        if let Some(place) = self.free.pop() {
            self.items[place as usize] = Some(item);
            return place;
        }
        self.items.push(Some(item));
        self.items.len() as u32 - 1
    }

    /// The thing at a place.
    ///
    /// # Panics
    /// If nothing is there: an event came twice, or for a thing that is gone.
    pub(crate) fn at(&mut self, place: u32) -> &mut T {
        self.items[place as usize].as_mut().expect("nothing is at this place")
    }

    /// Takes the thing away from a place.
    ///
    /// # Panics
    /// As [`Self::at`].
    pub(crate) fn take(&mut self, place: u32) -> T {
        let item = self.items[place as usize].take().expect("nothing is at this place");
        self.free.push(place);
        item
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.items.len() - self.free.len()
    }
}
