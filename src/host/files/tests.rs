use std::collections::HashMap;
use std::path::PathBuf;

use half::f16;
use proptest::prelude::*;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

use super::*;
use crate::convert::E4m3;
use crate::device::Device;
use crate::host::HostPoolConfig;
use crate::pool::PoolConfig;

struct Ground {
    folder: tempfile::TempDir,
    pool: Pool,
    host: HostPool,
    stream: Stream,
}

fn ground() -> Ground {
    let device = Device::host().unwrap();
    Ground {
        folder: tempfile::tempdir().unwrap(),
        pool: Pool::new(&device, PoolConfig::default()).unwrap(),
        host: HostPool::new(&device, HostPoolConfig::default()),
        stream: device.stream().unwrap(),
    }
}

impl Ground {
    fn file(&self, bytes: &[u8]) -> PathBuf {
        let path = self.folder.path().join("data");
        std::fs::write(&path, bytes).unwrap();
        path
    }

    fn with_header(&self, header: &str, data: usize) -> Result<TensorFile> {
        let size = (header.len() as u64).to_le_bytes();
        TensorFile::open(self.file(&[&size[..], header.as_bytes(), &vec![7; data]].concat()))
    }

    fn load<T: Pod>(
        &self,
        file: &TensorFile,
        name: &str,
        rows: impl RangeBounds<usize>,
    ) -> Result<Vec<T>> {
        file.load::<T>(&self.pool, &self.host, &self.stream, name, rows)?
            .download()
    }

    fn is_clean(&self) {
        self.stream.synchronize().unwrap();
        self.host.trim().unwrap();
        let stats = self.host.stats();
        assert_eq!((stats.reserved.current, stats.pending), (0, 0));
        assert_eq!(self.pool.stats().allocated.current, 0);
    }
}

fn floats(len: usize) -> Vec<f32> {
    (0..len).map(|at| at as f32 * 0.5 - 3.0).collect()
}

/// A file as the format's own library writes it.
fn written() -> Vec<u8> {
    let floats = floats(6);
    let halves: Vec<f16> = floats.iter().copied().map(f16::from_f32).collect();
    let view =
        |dtype, shape: &[usize], bytes| TensorView::new(dtype, shape.to_vec(), bytes).unwrap();
    let tensors = [
        (
            "matrix",
            view(Dtype::F32, &[3, 2], bytemuck::cast_slice(&floats)),
        ),
        (
            "halves",
            view(Dtype::F16, &[2, 3], bytemuck::cast_slice(&halves)),
        ),
        ("one", view(Dtype::I64, &[], &[9, 0, 0, 0, 0, 0, 0, 0])),
        ("small", view(Dtype::F8_E4M3, &[4], &[0x38, 0, 1, 0xb8])),
        ("none", view(Dtype::F32, &[0, 5], &[])),
        ("nibbles", view(Dtype::F4, &[2, 4], &[1, 2, 3, 4])),
        ("odd", view(Dtype::F4, &[2, 3], &[1, 2, 3])),
    ];
    let words = HashMap::from([(String::from("made"), String::from("here"))]);
    safetensors::serialize(tensors, Some(words)).unwrap()
}

#[test]
fn what_the_formats_own_library_writes_is_read() {
    let ground = ground();
    let file = TensorFile::open(ground.file(&written())).unwrap();
    assert_eq!(file.tensors().len(), 7);
    let matrix = file
        .tensors()
        .iter()
        .find(|tensor| tensor.name == "matrix")
        .unwrap();
    assert_eq!(
        (matrix.dtype, &matrix.shape[..], matrix.bytes),
        ("F32", &[3, 2][..], 24)
    );
    assert_eq!(ground.load::<f32>(&file, "matrix", ..).unwrap(), floats(6));
    assert_eq!(
        ground.load::<f32>(&file, "matrix", 1..3).unwrap(),
        floats(6)[2..]
    );
    assert_eq!(
        ground.load::<f16>(&file, "halves", ..1).unwrap()[2],
        f16::from_f32(-2.0)
    );
    assert_eq!(ground.load::<i64>(&file, "one", ..).unwrap(), [9]);
    assert_eq!(
        ground.load::<E4m3>(&file, "small", 3..).unwrap(),
        [E4m3(0xb8)]
    );
    assert!(ground.load::<f32>(&file, "none", ..).unwrap().is_empty());
    assert_eq!(ground.load::<u8>(&file, "nibbles", 1..2).unwrap(), [3, 4]);
    assert_eq!(ground.load::<u8>(&file, "odd", 0..1).unwrap(), [1, 2, 3]);
    ground.is_clean();
}

#[test]
fn what_is_not_in_the_file_or_of_another_type_is_refused() {
    let ground = ground();
    let file = TensorFile::open(ground.file(&written())).unwrap();
    let refused = |outcome: Result<Vec<f32>>, what: &str| {
        assert!(
            matches!(&outcome, Err(Error::Invalid { what: its, .. }) if *its == what),
            "{outcome:?}"
        );
    };
    refused(ground.load(&file, "nothing", ..), "name");
    refused(ground.load(&file, "matrix", 2..4), "range");
    refused(ground.load(&file, "matrix", ..=usize::MAX), "range");
    refused(ground.load(&file, "halves", ..), "T");
    let error = ground
        .load::<u32>(&file, "matrix", ..)
        .unwrap_err()
        .to_string();
    assert_eq!(error, "T: \"matrix\" is of F32: load it as f32, not u32");
    ground.is_clean();
}

#[test]
fn a_file_loaded_under_capture_is_refused_and_takes_no_memory_of_the_graph() {
    let ground = ground();
    let file = TensorFile::open(ground.file(&written())).unwrap();
    let capture = ground.stream.begin_capture().unwrap();
    assert!(ground.load::<f32>(&file, "matrix", ..).is_err());
    assert_eq!(capture.end().unwrap().memory().bytes(), 0);
    ground.is_clean();
}

#[test]
fn rows_of_a_raw_file_are_loaded_and_its_end_is_checked() {
    let ground = ground();
    let numbers: Vec<u32> = (0..3_000_000).collect();
    let path = ground.file(bytemuck::cast_slice(&numbers));
    let file = TensorFile::open_raw::<u32>(&path, 400, &[29_999, 100]).unwrap();
    assert!(ground.load::<u32>(&file, "", ..).unwrap() == numbers[100..]);
    assert!(ground.load::<u32>(&file, "", 5000..20_000).unwrap() == numbers[500_100..2_000_100]);
    let long = TensorFile::open_raw::<u32>(&path, 404, &[29_999, 100]);
    assert!(matches!(long, Err(Error::Malformed { .. })), "{long:?}");
    for shape in [&[usize::MAX, 2][..], &[usize::MAX / 4]] {
        let far = TensorFile::open_raw::<u32>(&path, 404, shape);
        assert!(
            matches!(far, Err(Error::Invalid { what: "shape", .. })),
            "{far:?}"
        );
    }
    assert!(matches!(
        TensorFile::open("/there/is/none"),
        Err(Error::Os { .. })
    ));
    assert!(matches!(
        TensorFile::open(ground.folder.path()),
        Err(Error::Malformed { .. })
    ));
    ground.is_clean();
}

#[test]
fn parts_are_loaded_ahead_in_order_and_a_wrong_one_is_an_error_in_its_place() {
    let ground = ground();
    let numbers: Vec<u32> = (0..2_000_000).collect();
    let path = ground.file(bytemuck::cast_slice(&numbers));
    let file = TensorFile::open_raw::<u32>(&path, 0, &[20, 100_000]).unwrap();
    let rows = (0..25).map(|at| ("", at..at + 1));
    let mut loader = file
        .load_ahead::<u32, _, _>(&ground.pool, &ground.host, 2, rows)
        .unwrap();
    drop(file);
    for at in 0..20 {
        let row = loader.next().unwrap().unwrap().download().unwrap();
        assert!(row == numbers[at * 100_000..(at + 1) * 100_000], "{at}");
    }
    assert!(matches!(
        loader.next(),
        Some(Err(Error::Invalid { what: "range", .. }))
    ));
    assert!(loader.next().is_none());
    drop(loader);
    ground.is_clean();
}

#[test]
fn a_file_cut_short_while_it_is_open_is_an_error_and_loads_what_is_left() {
    let ground = ground();
    let path = ground.file(bytemuck::cast_slice(&(0..1000_u32).collect::<Vec<_>>()));
    let file = TensorFile::open_raw::<u32>(&path, 0, &[1000]).unwrap();
    File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(2000)
        .unwrap();
    assert_eq!(ground.load::<u32>(&file, "", 400..500).unwrap().len(), 100);
    let error = ground.load::<u32>(&file, "", ..).unwrap_err();
    assert!(
        matches!(&error, Error::Malformed { .. }) && error.to_string().contains("cut short"),
        "{error}"
    );
    ground.is_clean();
}

#[test]
fn a_damaged_header_is_an_error_that_says_what_is_wrong() {
    let ground = ground();
    let tensor = |name: &str, rest: &str| format!("\"{name}\":{{{rest}}}");
    let f32s = |name: &str, from: usize, to: usize| {
        let size = (to - from) / 4;
        tensor(
            name,
            &format!("\"dtype\":\"F32\",\"shape\":[{size}],\"data_offsets\":[{from},{to}]"),
        )
    };
    let cases = [
        (String::from("{"), 0, "header"),
        (String::from("[1]"), 0, "header"),
        (
            format!("{{{},{}}}", f32s("a", 0, 8), f32s("b", 4, 12)),
            12,
            "overlaps",
        ),
        (
            format!("{{{},{}}}", f32s("a", 0, 8), f32s("b", 12, 16)),
            16,
            "gap",
        ),
        (format!("{{{}}}", f32s("a", 4, 8)), 8, "gap"),
        (format!("{{{}}}", f32s("a", 0, 8)), 9, "9 bytes behind"),
        (format!("{{{}}}", f32s("a", 0, 8)), 7, "7 bytes behind"),
        (
            format!("{{{}}}", f32s("a", 0, 8).replace("F32", "F33")),
            8,
            "unknown dtype, \"F33\"",
        ),
        (
            format!("{{{}}}", f32s("a", 0, 8).replace("[2]", "[3]")),
            8,
            "is not what",
        ),
        (
            format!("{{{}}}", f32s("a", 0, 8).replace("[2]", "[-2]")),
            8,
            "the shape of tensor",
        ),
        (
            format!("{{{}}}", f32s("a", 0, 8).replace("[0,8]", "[8,0]")),
            8,
            "is not what",
        ),
        (
            format!("{{{}}}", f32s("a", 0, 8).replace("[0,8]", "[8]")),
            8,
            "no two",
        ),
        (
            format!("{{{}}}", f32s("a", 0, 8).replace("shape", "shap")),
            8,
            "has no shape",
        ),
        (
            format!(
                "{{{}}}",
                f32s("a", 0, 8).replace("[2]", "[4294967296,4294967296,2]")
            ),
            8,
            "is not what",
        ),
        (
            format!("{{\"__metadata__\":3,{}}}", f32s("a", 0, 8)),
            8,
            "__metadata__",
        ),
        (
            format!(
                "{{{}}}",
                f32s("a", 0, 8)
                    .replace("F32", "F4")
                    .replace("[2]", "[0,9223372036854775807,9]")
                    .replace("8]", "0]")
            ),
            1,
            "1 bytes behind",
        ),
    ];
    for (header, data, words) in cases {
        let error = ground.with_header(&header, data).unwrap_err();
        assert!(
            matches!(&error, Error::Malformed { .. }) && error.to_string().contains(words),
            "{header}: {error}"
        );
    }
    for (bytes, words) in [
        (&[][..], "cut short"),
        (&[1, 2, 3], "cut short"),
        (&[255; 8], "told"),
        (&[9, 0, 0, 0, 0, 0, 0, 0, b'{'], "told"),
    ] {
        let error = TensorFile::open(ground.file(bytes)).unwrap_err();
        assert!(error.to_string().contains(words), "{bytes:?}: {error}");
    }
    assert!(ground.with_header("{}", 0).unwrap().tensors().is_empty());
}

#[test]
fn a_tensor_or_a_field_that_is_there_twice_is_an_error() {
    let ground = ground();
    let tensor = r#"{"dtype":"F32","shape":[2],"data_offsets":[0,8]}"#;
    let with = |field: &str| format!("{{\"a\":{}}}", tensor.replace('{', &format!("{{{field},")));
    let words = r#""__metadata__":{"a":"b"}"#;
    for (header, twice) in [
        (format!("{{\"a\":{tensor},\"a\":{tensor}}}"), "tensor \"a\""),
        (
            format!("{{{words},\"a\":{tensor},{words}}}"),
            "__metadata__",
        ),
        (with(r#""dtype":"I32""#), "the dtype of tensor \"a\""),
        (with(r#""shape":[1]"#), "the shape of tensor \"a\""),
        (
            with(r#""data_offsets":[0,4]"#),
            "data_offsets of tensor \"a\"",
        ),
    ] {
        let outcome = ground.with_header(&header, 8);
        let why = outcome.expect_err(&header).to_string();
        assert!(
            why.contains(&format!("{twice} is there twice")),
            "{header}: {why}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn a_damaged_file_is_an_error_or_what_the_formats_own_library_reads(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in prop::option::weighted(0.2, any::<prop::sample::Index>()),
    ) {
        let mut bytes = written();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("damaged");
        std::fs::write(&path, &bytes).unwrap();
        let theirs = SafeTensors::deserialize(&bytes);
        match TensorFile::open(&path) {
            Ok(file) => {
                let theirs = theirs.unwrap();
                prop_assert_eq!(file.tensors().len(), theirs.len());
                for tensor in file.tensors() {
                    let view = theirs.tensor(&tensor.name).unwrap();
                    prop_assert_eq!(view.shape(), &tensor.shape[..]);
                    let from = tensor.from as usize;
                    prop_assert_eq!(view.data(), &bytes[from..from + tensor.bytes as usize]);
                }
            }
            Err(error) => {
                prop_assert!(matches!(&error, Error::Malformed { .. }), "{}", error);
                prop_assert!(theirs.is_err(), "{}", error);
            }
        }
    }
}

#[test]
fn an_error_quotes_little_of_a_header_however_long_it_is() {
    let ground = ground();
    let long = "a".repeat(3 << 20);
    let wrong = "\"dtype\":\"F33\",\"shape\":[2],\"data_offsets\":[0,8]";
    for header in [
        format!("\"{long}\""),
        format!("{{\"{long}\":{{{wrong}}}}}"),
        format!("{{\"a\":{{{}}}}}", wrong.replace("F33", &long)),
        format!("{{\"\u{e9}{long}\":3}}"),
        format!(
            "{{\"a\":{{{}}}}}",
            wrong
                .replace("F33", "F32")
                .replace("[2]", &format!("[{}1]", "1,".repeat(1 << 20)))
        ),
    ] {
        let error = ground.with_header(&header, 8).unwrap_err().to_string();
        assert!(error.len() < 1000, "{} bytes: {error:.500}", error.len());
    }
}

#[test]
fn every_tensor_of_a_file_of_many_is_found_soon() {
    let ground = ground();
    let names: Vec<String> = (0..80_000)
        .map(|at| format!("layers.{at:05}.weight"))
        .collect();
    let tensors: Vec<String> = names
        .iter()
        .map(|name| format!("\"{name}\":{{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}"))
        .collect();
    let file = ground
        .with_header(&format!("{{{}}}", tensors.join(",")), 0)
        .unwrap();
    let begun = std::time::Instant::now();
    for name in &names {
        assert_eq!(file.part::<u8>(name, &..).unwrap().len, 0);
    }
    let took = begun.elapsed();
    assert!(took.as_secs() < 5, "{took:?}");
    assert!(file.part::<u8>("layers.80000.weight", &..).is_err());
}

#[test]
fn elements_of_no_bytes_are_loaded_at_once_however_many_they_are() {
    let ground = ground();
    let file = TensorFile::open_raw::<()>(ground.file(&[]), 0, &[usize::MAX]).unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let made = file.load::<()>(&ground.pool, &ground.host, &ground.stream, "", ..);
        tell.send(made.map(|made| made.len())).unwrap();
    });
    let len = told.recv_timeout(std::time::Duration::from_secs(20));
    assert_eq!(len.expect("it returns").unwrap(), usize::MAX);
}

/// Run by the test below in a process of its own, whose peak memory it checks.
#[test]
#[ignore = "a program for another test"]
fn a_header_of_numbers_is_read() {
    let ground = tempfile::tempdir().unwrap();
    let path = ground.path().join("hostile");
    let numbers = "1,".repeat(10 << 20);
    for header in [
        format!("{{\"a\":{{\"shape\":[{numbers}1]}}}}"),
        format!("{{\"a\":{{\"more\":[{numbers}1]}}}}"),
        format!("{{\"a\":[{numbers}1]}}"),
    ] {
        let size = (header.len() as u64).to_le_bytes();
        std::fs::write(&path, [&size[..], header.as_bytes()].concat()).unwrap();
        assert!(TensorFile::open(&path).is_err());
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let peak: u64 = (peak.unwrap().trim().trim_end_matches(" kB").parse()).unwrap();
    assert!(peak < 200 << 10, "{peak} KiB for 20 MiB");
}

#[test]
fn a_header_takes_memory_by_its_bytes_whatever_they_say() {
    let program = "host::files::tests::a_header_of_numbers_is_read";
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    let ran = child
        .args([program, "--exact", "--ignored"])
        .output()
        .unwrap();
    let words = String::from_utf8_lossy(&ran.stdout);
    assert!(
        ran.status.success() && words.contains("1 passed"),
        "{words}"
    );
}
