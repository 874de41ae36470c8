//! The names that the application gives to streams, for reports.

use super::lock;
use super::structure::Device;

/// The name of compaction's own streams.
pub(crate) const COMPACTION: &str = "compaction";
/// The name of the gates, the streams that represent those under capture.
pub(crate) const CAPTURE: &str = "capture";

impl Device {
    pub(super) fn name_stream(&self, stream: u64, name: &str) {
        lock(&self.inner.names).insert(stream, name.into());
    }

    pub(super) fn forget_name(&self, stream: u64) {
        lock(&self.inner.names).remove(&stream);
    }

    /// The stream's name, if it has one.
    pub(crate) fn stream_name(&self, stream: u64) -> Option<String> {
        lock(&self.inner.names).get(&stream).cloned()
    }
}

/// The stream in reports: `stream 3`, or `stream 3 (loader)`.
pub(crate) fn stream_words(stream: u64, name: Option<&str>) -> String {
    match name {
        Some(name) => format!("stream {stream} ({name})"),
        None => format!("stream {stream}"),
    }
}
