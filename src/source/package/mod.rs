//! Packages of Resource Dumps and Change Dumps, read in place over ranges (sections 11.1 and 13.1): a ZIP's directory from
//! its end, members by their ranges, neighbours joined; the whole package where that is cheaper or ranges are not to be had.
