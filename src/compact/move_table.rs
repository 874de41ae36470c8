//! Tables of moves in the forms that the kernels read; `kernels/warpool.h` defines them.

use super::plan::Move;
use crate::driver::abi;
use crate::error::{Error, Result, refuse};

/// Alignment of every address and length of a move, in bytes.
pub const MOVE_ALIGN: u64 = 16;

const ADDR_BITS: u32 = 44;
const UNIT_LOW_BITS: u32 = 20;
const UNIT_BITS: u32 = 40;

/// A table of disjoint moves in the order and form that `wp_relocate` reads.
#[derive(Debug, Clone, Default)]
pub struct MoveTable {
    words: Vec<u64>,
    first_tile: Vec<u32>,
    group_move: Vec<u32>,
    small: u64,
    large: u64,
    tiles: u32,
}

impl MoveTable {
    /// Makes a table of `moves`, which must be disjoint: see [`Batch::Disjoint`](super::Batch).
    ///
    /// # Errors
    /// [`Error::Invalid`] if an address or length is not a multiple of [`MOVE_ALIGN`], or lies
    /// beyond 48 bits.
    pub fn new(moves: &[Move]) -> Result<Self> {
        let mut classes: [Vec<[u64; 2]>; 2] = Default::default();
        let mut table = Self::default();
        for m in moves {
            let large = m.bytes > u64::from(abi::WP_SMALL_MOVE);
            classes[usize::from(large)].push(packed(m)?);
            if large {
                let index = table.first_tile.len() as u32;
                table.first_tile.push(table.tiles);
                let tiles = m.bytes.div_ceil(u64::from(abi::WP_MOVE_TILE));
                table.tiles = u32_of(u64::from(table.tiles) + tiles)?;
                let groups = table.tiles.div_ceil(abi::WP_TILE_GROUP);
                table.group_move.resize(groups as usize, index);
            }
        }
        [table.small, table.large] = [0, 1].map(|class| classes[class].len() as u64);
        table.words = classes.concat().concat();
        Ok(table)
    }

    /// Bytes of device memory that the table takes, at an address that is a multiple of 16.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.words.len() * 8 + (self.first_tile.len() + self.group_move.len()) * 4
    }

    /// The bytes to copy to device memory.
    #[must_use]
    pub fn image(&self) -> Vec<u8> {
        let mut image = bytemuck::cast_slice::<u64, u8>(&self.words).to_vec();
        image.extend_from_slice(bytemuck::cast_slice(&self.first_tile));
        image.extend_from_slice(bytemuck::cast_slice(&self.group_move));
        image
    }

    /// The arguments of the launch, for an image at `table`. A `max_blocks` of 0 sets no limit.
    #[must_use]
    pub fn args(&self, table: u64, max_blocks: u32) -> abi::wp_relocate {
        let first_tile = table + self.words.len() as u64 * 8;
        abi::wp_relocate {
            moves: table,
            first_tile,
            group_move: first_tile + self.first_tile.len() as u64 * 4,
            small: self.small,
            large: self.large,
            tiles: self.tiles,
            max_blocks,
        }
    }
}

fn u32_of(tiles: u64) -> Result<u32> {
    u32::try_from(tiles).map_err(|_| {
        Error::invalid(
            "moves",
            format!("{tiles} tiles are too many for one launch; split the batch"),
        )
    })
}

fn check(m: &Move) -> Result<()> {
    if !(m.src | m.dst | m.bytes).is_multiple_of(MOVE_ALIGN) {
        let why = format!("{m:?} does not have multiples of {MOVE_ALIGN} bytes; round blocks up");
        return Err(Error::invalid("moves", why));
    }
    let ends = [m.src, m.dst].map(|from| from.checked_add(m.bytes));
    refuse!(ends.contains(&None) => "moves", "{m:?} ends beyond the address space");
    Ok(())
}

fn packed(m: &Move) -> Result<[u64; 2]> {
    check(m)?;
    let [src, dst, units] = [m.src, m.dst, m.bytes].map(|v| v / MOVE_ALIGN);
    if src >> ADDR_BITS != 0 || dst >> ADDR_BITS != 0 || units >> UNIT_BITS != 0 {
        return Err(Error::invalid(
            "moves",
            format!("{m:?} is beyond 48 bits of address"),
        ));
    }
    let low = units & ((1 << UNIT_LOW_BITS) - 1);
    Ok([
        src + (low << ADDR_BITS),
        dst + (units >> UNIT_LOW_BITS << ADDR_BITS),
    ])
}

/// A table of moves that may overlap, all in one direction, in the form that `wp_slide` reads.
#[derive(Debug, Clone)]
pub struct SlideTable {
    moves: Vec<u64>,
    lo: u64,
    hi: u64,
    upward: bool,
}

impl SlideTable {
    /// Makes a table of the moves of a [`Batch::Slide`](super::Batch).
    ///
    /// # Errors
    /// [`Error::Invalid`] if an address or length is not a multiple of [`MOVE_ALIGN`], if a move
    /// ends beyond the address space or goes against `upward`, or if its source or destination does
    /// not lie after that of the move before.
    pub fn new(moves: &[Move], upward: bool) -> Result<Self> {
        let (mut src_end, mut dst_end) = (0, 0);
        for m in moves {
            check(m)?;
            if m.src < src_end || m.dst < dst_end || (m.dst > m.src) != upward && m.dst != m.src {
                let way = if upward { "upwards" } else { "downwards" };
                return Err(Error::invalid(
                    "moves",
                    format!(
                        "{m:?} does not follow the others {way}; sort them, with one direction per table"
                    ),
                ));
            }
            (src_end, dst_end) = (m.src + m.bytes, m.dst + m.bytes);
        }
        let tile = u64::from(abi::WP_SLIDE_TILE);
        let lo = moves.first().map_or(0, |m| m.src / tile * tile);
        let words = moves.iter().flat_map(|m| [m.src, m.dst, m.bytes]).collect();
        Ok(Self {
            moves: words,
            lo,
            hi: src_end,
            upward,
        })
    }

    /// The bytes to copy to device memory, at an address that is a multiple of 8.
    #[must_use]
    pub fn image(&self) -> &[u8] {
        bytemuck::cast_slice(&self.moves)
    }

    /// Bytes of scratch memory that the launch needs, at an address that is a multiple of 16.
    #[must_use]
    pub fn scratch_bytes(&self) -> u64 {
        64 + 4 * (self.hi - self.lo).div_ceil(u64::from(abi::WP_SLIDE_TILE))
    }

    /// The arguments of the launch, for an image at `table`. A `max_blocks` of 0 sets no limit.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there are more moves than one launch can make.
    pub fn args(&self, table: u64, scratch: u64, max_blocks: u32) -> Result<abi::wp_slide> {
        Ok(abi::wp_slide {
            moves: table,
            lo: self.lo,
            hi: self.hi,
            scratch,
            count: u32_of(self.moves.len() as u64 / 3)?,
            upward: u32::from(self.upward),
            max_blocks,
            fenced: 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_move_of_any_size_and_place_is_read_as_it_was_packed(
            src in 0u64..1 << ADDR_BITS,
            dst in 0u64..1 << ADDR_BITS,
            bits in 1u32..UNIT_BITS,
            of in any::<u64>(),
        ) {
            let units = of & ((1 << bits) - 1);
            let of = |units: u64| units * MOVE_ALIGN;
            let m = Move { src: of(src), dst: of(dst), bytes: of(units) };
            let [from, to] = packed(&m).expect("within its bits");
            // The packing that kernels/warpool.h defines.
            let (addr, rest) = (|word: u64| word % (1 << 44), |word: u64| word >> 44);
            prop_assert_eq!([addr(from), addr(to)], [src, dst]);
            prop_assert_eq!(rest(from) + (rest(to) << 20), units);
            // One more bit in any field is refused.
            for far in [
                Move { src: of(1 << ADDR_BITS | src), ..m },
                Move { dst: of(1 << ADDR_BITS | dst), ..m },
                Move { bytes: of(1 << UNIT_BITS | units), ..m },
            ] {
                prop_assert!(packed(&far).is_err());
            }
        }
    }

    #[test]
    fn a_table_takes_the_bytes_that_its_image_has() {
        let moves: Vec<Move> = (0..100)
            .map(|i| Move {
                src: i << 24,
                dst: i << 24 | 1 << 23,
                bytes: 16 << (i % 18),
            })
            .collect();
        for count in [1, 2, 3, 99, 100] {
            let table = MoveTable::new(&moves[..count]).expect("multiples of sixteen");
            assert_eq!(table.bytes(), table.image().len(), "{count} moves");
            // The parts follow each other without gaps.
            let args = table.args(4096, 0);
            let tiles = args.moves + table.words.len() as u64 * 8;
            let groups = tiles + table.first_tile.len() as u64 * 4;
            assert_eq!(
                (args.moves, args.first_tile, args.group_move),
                (4096, tiles, groups)
            );
            let end = groups + table.group_move.len() as u64 * 4;
            assert_eq!(end - 4096, table.bytes() as u64);
        }
    }

    fn mv(src: u64, dst: u64, bytes: u64) -> Move {
        Move { src, dst, bytes }
    }

    /// Neither table takes the moves, and the error says `why`.
    #[track_caller]
    fn refused(moves: &[Move], upward: bool, why: &str) {
        let disjoint = MoveTable::new(moves).map(drop);
        for outcome in [disjoint, SlideTable::new(moves, upward).map(drop)] {
            let error = outcome.expect_err("it was taken").to_string();
            assert!(error.contains(why), "{moves:?}: {error}");
        }
    }

    #[test]
    fn a_move_that_is_not_of_multiples_of_sixteen_is_refused() {
        assert!(SlideTable::new(&[mv(0, 64, 16)], true).is_ok());
        let one = [mv(8, 64, 16), mv(0, 72, 16), mv(0, 64, 24)];
        let two = [mv(8, 72, 16), mv(0, 72, 24), mv(8, 64, 24)];
        for m in one.into_iter().chain(two) {
            refused(&[m], true, "multiples of 16");
        }
    }

    #[test]
    fn a_move_that_ends_beyond_the_address_space_is_refused() {
        let last = u64::MAX - 15;
        for (m, upward) in [(mv(last, 0, 16), false), (mv(0, last, 16), true)] {
            refused(&[m], upward, "beyond the address space");
        }
        assert!(SlideTable::new(&[mv(last - 16, 0, 16)], false).is_ok());
    }

    #[test]
    fn more_tiles_than_a_launch_can_count_are_refused() {
        let largest = (u64::from(abi::WP_MOVE_TILE) << 32) - MOVE_ALIGN;
        let outcome = MoveTable::new(&[mv(0, 1 << 44, largest)]);
        let error = outcome.expect_err("it was taken").to_string();
        assert!(error.contains("too many"), "{error}");
    }

    #[test]
    fn a_move_beyond_48_bits_is_refused() {
        let far = Move {
            src: 1 << 48,
            dst: 0,
            bytes: 16,
        };
        assert!(matches!(MoveTable::new(&[far]), Err(Error::Invalid { .. })));
    }

    #[test]
    fn slides_that_cross_or_turn_are_refused() {
        let is_taken = |moves: &[Move], upward| SlideTable::new(moves, upward).is_ok();
        // A block that stays is part of a slide in either direction.
        let (down, up, stays) = (mv(64, 32, 64), mv(64, 96, 64), mv(64, 64, 64));
        for (m, downward, upward) in [(down, true, false), (up, false, true), (stays, true, true)] {
            assert_eq!(
                [false, true].map(|way| is_taken(&[m], way)),
                [downward, upward]
            );
        }
        assert!(is_taken(&[down, mv(128, 96, 64)], false));
        for second in [mv(128, 80, 64), mv(112, 96, 64)] {
            assert!(!is_taken(&[down, second], false), "{second:?}");
        }
    }
}
