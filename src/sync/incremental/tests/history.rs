//! Sources with random histories.
