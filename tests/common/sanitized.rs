//! A device, watched by the checker of stream order where the feature is on.

use warpool::Device;

/// See the module documentation.
pub struct Sanitized {
    pub device: Device,
    #[cfg(feature = "sanitize")]
    sanitizer: warpool::sanitize::Sanitizer,
}

impl Sanitized {
    #[cfg(feature = "sanitize")]
    pub fn over(device: &Device) -> Self {
        let (device, sanitizer) = warpool::sanitize::Sanitizer::over(device);
        Self { device, sanitizer }
    }

    #[cfg(not(feature = "sanitize"))]
    pub fn over(device: &Device) -> Self {
        Self {
            device: device.clone(),
        }
    }

    /// The first report, if there is one.
    #[cfg(feature = "sanitize")]
    pub fn check(&self) -> Result<(), String> {
        self.sanitizer.check().map_err(|report| report.to_string())
    }

    #[cfg(not(feature = "sanitize"))]
    pub fn check(&self) -> Result<(), String> {
        Ok(())
    }
}
