// SPDX-License-Identifier: Apache-2.0
//! One writer, many readers, and no reader can make the writer wait: a full queue loses the frame, and it is counted.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use hyper::body::Bytes;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{self, Receiver, Sender};

/// Frames a reader may be behind before it loses some; about a quarter of a second at 30 Hz.
const QUEUE_FRAMES: usize = 8;

/// A set of readers.
pub struct Hub {
    readers: Mutex<Vec<Sender<Bytes>>>,
    limit: usize,
    dropped: AtomicU64,
}

impl Hub {
    /// A hub that takes at most `limit` readers at a time.
    pub fn new(limit: usize) -> Self {
        Self { readers: Mutex::new(Vec::new()), limit, dropped: AtomicU64::new(0) }
    }

    /// A new reader that finds `first` in its queue, or `None` when all places are taken.
    pub fn join(&self, first: Option<Bytes>) -> Option<Receiver<Bytes>> {
        let mut readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        readers.retain(|reader| !reader.is_closed());
        if readers.len() >= self.limit {
            return None;
        }
        let (sender, receiver) = mpsc::channel(QUEUE_FRAMES);
        first.map(|first| sender.try_send(first));
        readers.push(sender);
        Some(receiver)
    }

    /// Offers `frame` to every reader; those that are gone are forgotten.
    pub fn publish(&self, frame: &Bytes) {
        let mut readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        readers.retain(|reader| match reader.try_send(frame.clone()) {
            Ok(()) => true,
            Err(TrySendError::Closed(_)) => false,
            Err(TrySendError::Full(_)) => {
                self.dropped.fetch_add(1, Ordering::Relaxed);
                true
            }
        });
    }

    /// Readers now.
    pub fn clients(&self) -> usize {
        let readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        readers.iter().filter(|reader| !reader.is_closed()).count()
    }

    /// Frames lost by all readers since start.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_does_not_read_loses_frames_and_nobody_else_does() {
        let hub = Hub::new(2);
        let (slow, mut quick) = (hub.join(None).unwrap(), hub.join(None).unwrap());
        assert!(hub.join(None).is_none());
        for n in 0..20_u8 {
            hub.publish(&Bytes::copy_from_slice(&[n]));
            assert_eq!(quick.try_recv().unwrap().as_ref(), [n]);
        }
        assert_eq!(hub.dropped(), 20 - QUEUE_FRAMES as u64);
        drop(slow);
        hub.publish(&Bytes::new());
        assert_eq!(hub.clients(), 1);
    }
}
