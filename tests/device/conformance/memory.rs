//! Ranges, handles and mappings.

use crate::common::BackendOf;
use warpool::device::{HandleCounts, Phys, RawEvent, RawStream};
use warpool::{Device, Error};

use crate::common::{Memory, fill, on_every_device, on_the_simulated_device, read, write};

on_every_device! {
    bytes_written_are_read_back_whatever_their_number,
    a_place_shows_the_handle_that_is_mapped_there_now,
    one_handle_at_two_addresses_shows_the_same_bytes,
    a_released_handle_lives_while_it_is_mapped,
    a_fill_may_cross_the_border_of_two_mappings,
    a_tebibyte_of_addresses_can_be_reserved,
    wrong_memory_arguments_are_errors_and_change_nothing,
    more_memory_than_there_is_is_an_error_the_pool_can_recognise,
    every_handle_is_counted,
}

on_the_simulated_device! {
    bytes_written_are_read_back_whatever_their_number,
    a_place_shows_the_handle_that_is_mapped_there_now,
    one_handle_at_two_addresses_shows_the_same_bytes,
    a_released_handle_lives_while_it_is_mapped,
    a_fill_may_cross_the_border_of_two_mappings,
    a_tebibyte_of_addresses_can_be_reserved,
    wrong_memory_arguments_are_errors_and_change_nothing,
    more_memory_than_there_is_is_an_error_the_pool_can_recognise,
    every_handle_is_counted,
}

fn bytes_written_are_read_back_whatever_their_number(device: &Device) {
    let stream = device.stream().unwrap();
    let memory = Memory::new(device, 1 << 20);
    for bytes in [0, 1, 3, 4, 15, 16, 17, 4095, 65_537, 1 << 20] {
        let data: Vec<u8> = (0..bytes).map(|i| (i * 7 + bytes) as u8).collect();
        fill(&stream, memory.addr, 0, memory.bytes);
        write(&stream, memory.addr, &data);
        assert!(read(&stream, memory.addr, bytes) == data, "{bytes} bytes");
        fill(&stream, memory.addr, 0x5A, bytes as u64);
        assert!(
            read(&stream, memory.addr, bytes)
                .iter()
                .all(|&byte| byte == 0x5A),
            "{bytes} bytes"
        );
    }
}

fn a_place_shows_the_handle_that_is_mapped_there_now(device: &Device) {
    let stream = device.stream().unwrap();
    let backend = device.backend();
    let granule = device.info().granule;
    let addr = backend.reserve(2 * granule).unwrap();
    let handles = [
        backend.create(granule).unwrap(),
        backend.create(granule).unwrap(),
    ];
    let places = [addr, addr + granule];
    for (byte, (&place, &phys)) in (1u8..).zip(places.iter().zip(&handles)) {
        backend.map(place, granule, phys).unwrap();
        fill(&stream, place, byte, granule);
    }
    stream.synchronize().unwrap();
    for place in places {
        backend.unmap(place, granule).unwrap();
    }
    backend.map(places[0], granule, handles[1]).unwrap();
    backend.map(places[1], granule, handles[0]).unwrap();
    assert!(
        read(&stream, places[0], granule as usize)
            .iter()
            .all(|&byte| byte == 2)
    );
    assert!(
        read(&stream, places[1], granule as usize)
            .iter()
            .all(|&byte| byte == 1)
    );
    for (place, phys) in places.into_iter().zip(handles) {
        backend.unmap(place, granule).unwrap();
        backend.release(phys).unwrap();
    }
    backend.unreserve(addr, 2 * granule).unwrap();
}

fn one_handle_at_two_addresses_shows_the_same_bytes(device: &Device) {
    let stream = device.stream().unwrap();
    let backend = device.backend();
    let granule = device.info().granule;
    let addr = backend.reserve(4 * granule).unwrap();
    let phys = backend.create(granule).unwrap();
    let twin = addr + 2 * granule;
    backend.map(addr, granule, phys).unwrap();
    fill(&stream, addr, 0x11, granule);
    backend.map(twin, granule, phys).unwrap();
    assert_eq!(read(&stream, twin + 100, 1), [0x11]);
    fill(&stream, twin + 100, 0x22, 1);
    assert_eq!(read(&stream, addr + 99, 3), [0x11, 0x22, 0x11]);
    backend.unmap(addr, granule).unwrap();
    assert_eq!(
        read(&stream, twin + 100, 1),
        [0x22],
        "the other mapping stands"
    );
    backend.unmap(twin, granule).unwrap();
    backend.release(phys).unwrap();
    backend.unreserve(addr, 4 * granule).unwrap();
}

fn a_released_handle_lives_while_it_is_mapped(device: &Device) {
    let stream = device.stream().unwrap();
    let backend = device.backend();
    let granule = device.info().granule;
    let addr = backend.reserve(granule).unwrap();
    let phys = backend.create(granule).unwrap();
    backend.map(addr, granule, phys).unwrap();
    fill(&stream, addr, 0x33, granule);
    backend.release(phys).unwrap();
    let other = backend.create(granule).unwrap();
    assert_eq!(read(&stream, addr + granule - 1, 1), [0x33]);
    assert!(matches!(backend.release(phys), Err(Error::Invalid { .. })));
    backend.unmap(addr, granule).unwrap();
    assert!(matches!(
        backend.map(addr, granule, phys),
        Err(Error::Invalid { .. })
    ));
    backend.release(other).unwrap();
    backend.unreserve(addr, granule).unwrap();
}

fn a_fill_may_cross_the_border_of_two_mappings(device: &Device) {
    let stream = device.stream().unwrap();
    let backend = device.backend();
    let granule = device.info().granule;
    let addr = backend.reserve(2 * granule).unwrap();
    let handles = [
        backend.create(granule).unwrap(),
        backend.create(granule).unwrap(),
    ];
    backend.map(addr, granule, handles[1]).unwrap();
    backend.map(addr + granule, granule, handles[0]).unwrap();
    fill(&stream, addr, 0, 2 * granule);
    fill(&stream, addr + granule - 2, 7, 4);
    assert_eq!(read(&stream, addr + granule - 3, 6), [0, 7, 7, 7, 7, 0]);
    backend.unmap(addr, granule).unwrap();
    backend.unmap(addr + granule, granule).unwrap();
    for phys in handles {
        backend.release(phys).unwrap();
    }
    backend.unreserve(addr, 2 * granule).unwrap();
}

fn a_tebibyte_of_addresses_can_be_reserved(device: &Device) {
    let backend = device.backend();
    let addr = backend.reserve(1 << 40).unwrap();
    assert_eq!(addr % device.info().granule, 0);
    backend.unreserve(addr, 1 << 40).unwrap();
}

fn wrong_memory_arguments_are_errors_and_change_nothing(device: &Device) {
    let backend = device.backend();
    let granule = device.info().granule;
    let addr = backend.reserve(4 * granule).unwrap();
    let phys = backend.create(granule).unwrap();
    let big = backend.create(2 * granule).unwrap();
    backend.map(addr + granule, granule, phys).unwrap();
    let before = backend.counts();
    let refused = [
        ("reserve nothing", backend.reserve(0).map(|_| ())),
        (
            "reserve part of a granule",
            backend.reserve(granule + 4096).map(|_| ()),
        ),
        (
            "reserve more than there are addresses",
            backend.reserve(u64::MAX - granule + 1).map(|_| ()),
        ),
        ("create nothing", backend.create(0).map(|_| ())),
        (
            "create part of a granule",
            backend.create(granule / 2).map(|_| ()),
        ),
        (
            "unreserve part of a range",
            backend.unreserve(addr, granule),
        ),
        (
            "unreserve inside a range",
            backend.unreserve(addr + granule, granule),
        ),
        (
            "unreserve what was not reserved",
            backend.unreserve(granule, granule),
        ),
        (
            "unreserve under a mapping",
            backend.unreserve(addr, 4 * granule),
        ),
        (
            "map over a mapping",
            backend.map(addr + granule, granule, phys),
        ),
        (
            "map into a mapping from below",
            backend.map(addr, 2 * granule, big),
        ),
        (
            "map part of a handle",
            backend.map(addr + 2 * granule, granule, big),
        ),
        (
            "map more than a handle",
            backend.map(addr + 2 * granule, 2 * granule, phys),
        ),
        (
            "map off the granule",
            backend.map(addr + 2 * granule + 4096, granule, phys),
        ),
        ("map outside any range", backend.map(granule, granule, phys)),
        (
            "map over the end of a range",
            backend.map(addr + 3 * granule, 2 * granule, big),
        ),
        (
            "map an unknown handle",
            backend.map(addr, granule, Phys(u64::MAX)),
        ),
        ("release an unknown handle", backend.release(Phys(u64::MAX))),
        ("unmap what is not mapped", backend.unmap(addr, granule)),
        (
            "unmap more than a mapping",
            backend.unmap(addr + granule, 2 * granule),
        ),
    ];
    for (what, result) in refused {
        let invalid = matches!(result, Err(Error::Invalid { .. }));
        // The size of the address space is the driver's to say.
        let known_to_the_driver =
            matches!(result, Err(Error::Driver { .. })) && what.contains("addresses");
        assert!(invalid || known_to_the_driver, "{what}: {result:?}");
    }
    assert_eq!(backend.counts(), before);
    // What was there still works.
    let stream = device.stream().unwrap();
    fill(&stream, addr + granule, 9, granule);
    assert_eq!(read(&stream, addr + 2 * granule - 1, 1), [9]);
    backend.map(addr + 2 * granule, 2 * granule, big).unwrap();
    backend.unmap(addr + 2 * granule, 2 * granule).unwrap();
    backend.unmap(addr + granule, granule).unwrap();
    backend.release(phys).unwrap();
    backend.release(big).unwrap();
    assert!(
        matches!(backend.release(big), Err(Error::Invalid { .. })),
        "released twice"
    );
    backend.unreserve(addr, 4 * granule).unwrap();
    assert!(
        matches!(
            backend.unreserve(addr, 4 * granule),
            Err(Error::Invalid { .. })
        ),
        "given back twice"
    );
}

fn more_memory_than_there_is_is_an_error_the_pool_can_recognise(device: &Device) {
    let backend = device.backend();
    let granule = device.info().granule;
    let total = device.info().total_bytes;
    let too_much = (total + granule).next_multiple_of(granule);
    let before = backend.counts();
    let error = backend.create(too_much).unwrap_err();
    assert!(error.is_device_exhausted(), "{error}");
    assert!(error.to_string().contains("OUT_OF_MEMORY"), "{error}");
    assert_eq!(backend.counts(), before);
    assert!(backend.free_bytes().unwrap() <= total);
    let phys = backend.create(granule).unwrap();
    backend.release(phys).unwrap();
}

fn every_handle_is_counted(device: &Device) {
    let backend = device.backend();
    let granule = device.info().granule;
    let start = HandleCounts::default();
    assert_eq!(backend.counts(), start);
    let addr = backend.reserve(2 * granule).unwrap();
    let phys = backend.create(granule).unwrap();
    backend.map(addr, granule, phys).unwrap();
    backend.map(addr + granule, granule, phys).unwrap();
    let (stream, event) = (
        backend.stream_create().unwrap(),
        backend.event_create(true).unwrap(),
    );
    let host = backend.host_alloc(8192).unwrap();
    assert!(host.is_multiple_of(256), "{host:#x}");
    assert!(backend.host_alloc(0).is_err());
    let all = HandleCounts {
        ranges: 1,
        handles: 1,
        mappings: 2,
        streams: 1,
        events: 1,
        graphs: 0,
        host_bytes: 8192,
        bytes: granule,
    };
    assert_eq!(backend.counts(), all);
    backend.release(phys).unwrap();
    assert_eq!(
        backend.counts(),
        HandleCounts { handles: 0, ..all },
        "counted until released, mapped or not"
    );
    backend.host_free(host, 8192).unwrap();
    backend.unmap(addr, granule).unwrap();
    let (left, bytes) = (backend.counts().bytes, granule);
    assert_eq!(left, bytes, "held while a mapping of it stands");
    backend.unmap(addr + granule, granule).unwrap();
    backend.unreserve(addr, 2 * granule).unwrap();
    assert_eq!(
        backend.counts(),
        HandleCounts {
            streams: 1,
            events: 1,
            ..start
        }
    );
    backend.stream_destroy(stream).unwrap();
    backend.event_destroy(event).unwrap();
    assert_eq!(backend.counts(), start);
    assert!(backend.stream_destroy(stream).is_err() && backend.event_destroy(event).is_err());
    assert!(backend.stream_destroy(RawStream(u64::MAX)).is_err());
    assert!(backend.event_destroy(RawEvent(u64::MAX)).is_err());
    assert_eq!(backend.counts(), start);
}
