//! What README.md and the manual say is so: options, commands, messages, metrics and tests that they name exist.

mod common;

use common::mounted::Mounted;
use common::source::{Resource, Source};
use resyncfs::cli;
use resyncfs::cli::help::TOPICS;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Which tests hold what README and the manual promise: a line for each promise, below it files with their tests.
const HELD: &str = "
Never a wrong byte
  tests/verdict.rs: no_sequential_reading_is_wrong_and_ends_well, verified_file_never_gives_other_bytes_after_eviction,
    open_file_is_of_one_version_whatever_changes
  tests/faults.rs: what_stays_wrong_is_an_error_and_never_a_wrong_byte, a_wrong_last_block_is_an_error_to_every_reader
  tests/model.rs: random_histories_equal_the_reference
  tests/telling.rs: histories_in_any_style_are_followed
  src/content/download/tests/ranges.rs: the_bytes_are_right_however_ranges_are_answered
  src/content/download/tests/followed.rs: what_is_not_read_is_not_fetched
  src/content/download/tests/jumps.rs: a_first_read_of_the_end_requests_that_alone,
    a_first_read_of_the_end_survives_odd_answers
  src/content/download/tests/past.rs: ranges_past_the_cache_are_sent_once,
    ranges_past_the_cache_stop_soon_behind_the_reader
  src/content/download/tests/shares.rs: a_stream_past_the_cache_does_not_wait_for_others
  tests/large_files.rs: large_files_read_at_once_take_bounded_memory
  tests/shared_cache.rs: every_fault_costs_time_and_never_a_byte, damage_in_the_store_costs_time_and_never_a_byte,
    a_new_version_is_never_an_older_one_of_the_store
Never an accidental emptiness
  tests/partial_trees.rs: an_index_with_a_dead_child_is_followed_without_it,
    what_fails_for_now_fails_a_first_mount_and_is_named, a_list_of_which_nothing_is_understood_has_failed
  tests/faults.rs: a_broken_list_changes_nothing_of_what_is_shown, an_index_with_one_list_missing_is_not_half_a_tree
  tests/kill.rs: during_the_first_baseline, during_a_refresh,
    during_incremental_commits_nothing_is_repeated_or_skipped
  tests/mount.rs: a_restart_shows_the_same_tree_without_the_source
  tests/guard.rs: a_resource_list_that_is_suddenly_short_takes_nothing_away,
    too_many_deletions_are_held_back_until_somebody_accepts_them
Never a stuck process
  tests/hosts.rs: mirrors_that_drip_do_not_put_off_a_readers_deadline, what_breaks_connections_takes_no_neighbour_away,
    a_pause_of_a_list_is_not_one_of_readers
  tests/silence.rs: unreachable_hosts_are_errors_in_time_and_stop_no_others,
    readers_stuck_on_a_dead_host_stop_nobody_else, readers_stuck_on_the_source_do_not_hold_up_a_refresh
  tests/invalidation.rs: names_do_not_wait_for_pages_that_are_being_read,
    reading_ahead_of_a_silent_host_leaves_room_for_others
  tests/mount.rs: a_file_of_unknown_length_is_never_shown_empty
  tests/shared_cache.rs: no_reader_waits_for_a_store_that_takes_no_writes
Never stale longer than announced
  tests/mount.rs: a_change_is_pushed_and_an_open_file_keeps_its_bytes,
    an_unlisted_change_is_seen_after_the_interval,
    a_file_becomes_a_folder_and_a_file_again
  tests/kernel_sees.rs: a_new_name_is_visible_although_it_was_looked_for_before,
    an_open_file_without_its_bytes_is_stale, a_mapped_file_keeps_its_bytes
  tests/invalidation.rs: a_great_change_by_a_list_leaves_no_old_name
  tests/websub.rs: a_notification_shows_the_change_at_once
Never a surprise on the disk
  tests/faults.rs: damaged_objects_are_fetched_again
  tests/damage.rs: a_damaged_catalog_is_built_again_at_the_next_mount, a_cache_emptied_below_a_mount_is_made_again
  tests/kill.rs: during_eviction, during_a_fetch_and_its_commit
  tests/large_files.rs: a_kill_amid_a_ranged_fetch_costs_the_unsaved_part
  tests/disk.rs: a_full_disk_costs_speed_and_never_a_byte,
    a_refresh_without_room_evicts_from_the_cache,
    a_list_without_end_does_not_fill_the_disk_of_the_cache,
    a_catalog_without_room_names_it_and_leaves_nothing,
    a_list_without_end_leaves_half_of_the_disk_free,
    two_mounts_share_a_cache_folder_that_is_too_small_for_either
  tests/mount.rs: after_a_crash_of_the_machine_damage_is_found_when_it_is_read
Every command of the texts
  tests/first_hour.rs: every_command_succeeds_and_prints_what_is_shown
Without root
  tests/access.rs: a_user_without_rights_mounts_for_themselves_alone
  tests/user_units.rs: a_user_starts_reloads_and_stops_a_mount_of_their_own,
    a_mount_of_a_user_comes_back_by_itself_after_kill_9, a_users_own_file_counts_before_that_of_all_users
In a container
  tests/unprivileged.rs: a_user_mounts_in_namespaces_of_their_own,
    mounts_in_namespaces_of_two_users_are_found_apart, a_user_without_rights_serves_what_root_mounted
  tests/descriptors.rs: a_mount_of_another_process_is_served_and_left_to_it,
    a_mount_that_is_not_seen_is_found_by_its_descriptor, a_manager_is_notified_and_a_signal_ends_a_given_mount,
    a_first_tree_that_fails_ends_the_connection, a_descriptor_of_fusermount3_is_served
As a service
  tests/units.rs: without_a_network_the_tree_of_the_last_time_is_there_at_once,
    after_kill_9_the_tree_is_back_also_for_its_users,
    a_stopped_process_is_replaced_and_an_idle_one_stays
By mount(8) and fstab
  tests/mount_helper.rs: mount_8_mounts_by_either_type_and_any_unmount_ends_it,
    blanks_and_commas_of_a_line_in_fstab_arrive, rw_of_mount_8_is_no_error_and_the_mount_is_read_only
  tests/mount_units.rs: a_line_of_fstab_mounts_for_who_looks_and_unmounts_when_idle
Configuration files and credentials
  tests/config.rs: a_name_is_mounted_by_its_file_below_the_command_line,
    a_services_credentials_are_used_where_nothing_else_is_named
  src/source/http/tests/trust.rs: a_moved_https_source_gets_no_credentials_over_http
Messages
  tests/readme.rs: each_quoted_message_is_one_of_the_program
File managers and text search
  tests/programs.rs: a_denied_program_reads_cached_files_only,
    a_refusal_disturbs_no_other_reader_of_the_file
  tests/desktop.rs: recoll_finds_text_and_reads_again_only_what_has_changed,
    a_file_manager_fetches_nothing_before_it_copies,
    names_with_extensions_by_type_are_not_fetched,
    a_file_manager_in_a_folder_of_a_silent_source_does_not_hang,
    only_a_copy_of_the_file_managers_library_fetches,
    the_database_of_locate_skips_a_mount_as_the_manual_says
Options
  src/cli/args/tests/mod.rs: each_option_means_the_same_by_o_by_flag_and_in_a_file
  tests/selection.rs: two_selections_of_one_source_are_two_trees_at_once,
    a_format_is_its_records_and_described_by_either_link
Status and metrics
  tests/status.rs: a_mount_is_listed_alive_silent_and_dead_and_no_look_hangs, without_a_folder_every_mount_is_told,
    reads_hosts_and_errors_are_counted, a_watched_screen_follows_the_mount_and_restores_the_terminal,
    prometheus_reads_metrics_on_the_socket_and_a_loopback_port
Cache, paths and addresses
  tests/cache.rs: a_prefetch_stops_at_a_full_cache_and_keeps_its_files,
    ctrl_c_ends_a_prefetch_on_the_side_of_the_mount_too,
    evicted_files_are_fetched_again_and_open_versions_stay,
    a_damaged_object_is_found_removed_and_fetched_again,
    a_folder_in_place_of_an_object_is_moved_away,
    what_is_mounted_is_never_cleared_and_what_it_shares_stays
  tests/names.rs: every_address_leads_to_its_path_and_back
Audit
  tests/audit.rs: what_the_source_lists_now_is_compared_with_what_is_shown, unread_changes_allow_no_verdict,
    sha256sum_accepts_the_manifest_within_the_mount
Changes
  src/sync/tests/lost.rs: a_child_that_fails_holds_no_other_and_is_applied_later,
    a_change_list_that_is_gone_is_a_gap_until_it_is_back, a_package_that_fails_for_now_holds_no_other_back
  src/sync/tests/waiting.rs: a_change_list_that_fails_for_good_slows_no_other
  src/sync/tests/older.rs: an_older_list_behind_a_newer_one_takes_nothing_back,
    an_older_list_that_is_served_for_a_day_is_believed, an_older_list_that_comes_and_goes_is_not_believed,
    an_older_list_is_believed_for_its_set_alone, changes_since_an_older_list_that_is_believed_are_read_again
  tests/motion.rs: a_rolling_change_list_is_followed, closed_change_lists_and_their_index_are_followed
  tests/real_changes.rs: a_change_list_with_the_newest_first_is_followed, a_change_list_of_version_1_0_is_followed
  tests/simulator.rs: the_simulator_of_version_1_1_is_followed
Deletions
  tests/guard.rs: too_many_deletions_are_held_back_until_somebody_accepts_them,
    a_held_deletion_ends_when_the_resource_is_back
  tests/partial_trees.rs: while_entries_are_not_understood_no_absence_deletes
  src/sync/tests/deletions.rs: a_missing_set_holds_back_its_own_deletions_until_it_is_back,
    many_undated_deletions_are_asked_about_refresh_by_refresh
Notifications
  tests/websub.rs: flask_websub_delivers, a_notification_shows_the_change_at_once,
    a_document_without_the_change_is_requested_past_caches, hostile_deliveries_change_nothing,
    an_unmount_unsubscribes
Reading ahead
  src/fs/prefetch/tests.rs: in_mixed_work_less_than_a_tenth_is_wasted,
    a_process_that_jumps_makes_no_walk_of_another_forgotten
  tests/reading_ahead.rs: what_is_fetched_ahead_of_a_process_ends_with_it,
    grep_fetches_many_files_at_once_and_each_once,
    rsync_fetches_many_files_at_once_and_each_once,
    a_walk_through_folders_prefetches_the_next_folder,
    a_silent_host_delays_no_sizes_of_another,
    the_first_files_of_a_listed_tree_begin_a_walk,
    a_reader_that_jumps_gets_what_it_reads_and_nothing_else,
    a_reader_comes_before_files_prefetched_for_another, two_walks_and_a_reader_that_jumps_all_get_on,
    a_silent_host_delays_no_files_of_another,
    a_walk_through_a_cold_tree_takes_one_request_a_file,
    programs_of_one_file_each_count_as_one_walk,
    walks_through_a_small_full_cache_use_prefetched_files,
    without_readahead_only_read_files_are_fetched
  src/source/http/limiter/tests.rs: a_reader_comes_before_prefetches_and_background_work
  src/source/zip/tests/walks.rs: a_reader_comes_before_what_is_fetched_for_no_reader_yet
  tests/crowds.rs: a_process_with_one_reader_has_its_share_beside_one_with_many
  tests/connections.rs: over_http_2_all_requests_share_one_connection,
    over_http_1_1_connections_are_kept_and_tls_sessions_resumed,
    ranges_over_http_2_take_bounded_connections_of_their_own,
    ranges_refused_over_http_1_1_are_requested_over_http_2,
    a_host_that_slows_down_is_asked_less_until_it_is_fast_again, a_host_that_is_far_is_asked_as_much_as_is_allowed
  src/source/http/tests/bulk.rs: what_a_host_does_not_take_comes_over_the_connection_for_all
Packages
  tests/packages.rs: siblings_come_from_their_package_unless_it_is_no_zip,
    a_walk_through_a_package_takes_few_requests,
    a_source_of_dumps_alone_is_read_from_its_packages,
    a_change_dump_alone_brings_changes_and_their_bytes,
    without_ranges_the_copied_manifests_make_the_tree,
    a_lying_manifest_copy_never_gives_wrong_bytes
  src/source/zip/tests/walks.rs: a_small_package_comes_whole_when_three_members_are_wanted,
    a_walk_through_a_large_package_takes_windows, members_wanted_far_apart_cost_at_most_twice_the_package
Landing pages
  tests/items.rs: a_page_is_mounted_as_its_items_its_records_and_itself, an_address_that_redirects_leads_to_its_page,
    links_of_header_html_head_and_link_sets_are_items_alike, a_page_without_items_says_so_and_what_to_give_instead,
    explore_says_that_pages_have_files_and_how_to_mount_them, items_of_a_page_appear_all_at_once_beside_it,
    a_page_that_is_opened_is_read_before_the_others, of_two_items_of_one_name_the_smaller_address_keeps_it,
    a_data_package_gives_paths_sizes_and_digests, bytes_that_the_description_does_not_know_are_an_error,
    items_and_pages_carry_what_is_said_of_the_page, path_prints_each_place_of_an_item,
    items_go_by_what_a_page_says_not_by_its_failure, a_page_is_asked_once_for_each_lastmod_restarts_included,
    an_item_of_a_host_not_allowed_is_listed_and_refused, a_prefetch_waits_for_the_pages_below,
    a_page_that_is_an_item_of_itself_or_of_its_item_ends, a_link_set_that_is_none_is_told_and_takes_nothing,
    a_link_set_of_10_mb_and_10_000_items_are_whole_or_told, wrong_types_of_items_are_borne_and_login_pages_refused,
    no_name_of_an_item_leaves_the_folder_of_its_page
  src/sync/items/queue.rs: a_page_that_fails_rests_longer_each_time
  src/source/entry_point.rs: a_doi_is_the_address_of_its_resolver
Landing pages of DSpace: names by Content-Disposition, a further member beside the link set
  tests/items.rs: an_item_has_the_name_that_says_most, link_sets_of_real_servers_are_read
  src/document/web_link/link_set.rs: what_platforms_make_of_the_json_is_read
Landing pages of InvenioRDM: all records at one address, links in a link set alone
  tests/items.rs: one_address_with_several_types_is_a_file_each, link_sets_of_real_servers_are_read
  src/sync/items/names.rs: each_form_of_one_address_has_its_own_name
Landing pages of Dataverse: a link set in an envelope, paths by Croissant, addresses with a query
  tests/items.rs: link_sets_of_real_servers_are_read, a_description_gives_paths_sizes_and_digests
  src/document/dataset.rs: files_of_a_croissant
  src/sync/items/names.rs: described_files_match_by_address_then_query_then_name
Earlier times
  tests/archives.rs: a_mount_of_an_earlier_time_shows_the_tree_of_then,
    a_mount_of_an_earlier_time_needs_its_change_documents,
    a_tree_of_an_earlier_time_shows_how_far_it_goes,
    a_gap_is_closed_by_the_archive_without_a_new_resource_list
Other places
  tests/links.rs: a_mirror_that_fails_is_asked_last_from_then_on,
    an_older_version_comes_from_its_memento_or_timegate,
    a_new_version_comes_by_its_patch_where_it_can
Names
  src/catalog/tests/shared_paths.rs: of_uris_of_one_path_the_first_are_shown_in_any_history,
    another_takes_the_place_of_what_goes_by_the_next_baseline
  src/sync/tests/many.rs: of_uris_of_one_path_beyond_the_bound_the_first_are_shown
  tests/sizes.rs: attributes_of_a_file_that_cannot_be_sized_are_answered
Limits
  tests/sizes.rs: ls_l_takes_sizes_from_heads_whatever_their_validator,
    files_of_which_no_size_comes_cost_one_wait_together, a_head_that_the_body_contradicts_costs_one_read,
    an_empty_file_without_digest_is_requested_by_the_next_mount
  src/catalog/sort/tests.rs: more_runs_than_may_be_open_are_merged
  src/catalog/tests/many.rs: many_changed_folders_are_reported_together_in_place
  src/catalog/tests/whole.rs: kill_while_a_tree_is_rebuilt_leaves_the_old_one
  tests/crowds.rs: a_thousand_readers_at_once_take_bounded_resources,
    a_mount_may_have_as_many_files_open_as_the_hard_limit_allows
  tests/damage.rs: a_mount_lives_with_an_address_space_of_2_gb
  tests/small_machines.rs: a_large_tree_is_made_changed_and_mounted_again,
    many_readers_of_more_than_the_cache_holds_get_their_bytes, changes_and_crashes_leave_the_tree_as_published
  src/sync/tests/many.rs: many_changes_are_applied_in_batches_without_the_lists,
    what_died_between_two_batches_goes_on_and_repeats_nothing
  src/sync/changes/tests/state.rs: the_state_of_many_undated_entries_is_small
  src/source/crawl/fetch.rs: the_head_of_a_document_has_a_deadline
";

fn file(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|cause| panic!("{}: {cause}", path.display()))
}

/// README and every topic of the manual, each with its name.
fn texts() -> Vec<(String, String)> {
    let topics = TOPICS.iter().map(|topic| (format!("scripts/manual/{}.md", topic.name), topic.text.to_owned()));
    [("README.md".to_owned(), file("README.md"))].into_iter().chain(topics).collect()
}

/// Every `NAME` between backquotes of `text`, blocks of code left out, with line ends as blanks.
fn quoted(text: &str) -> Vec<String> {
    let prose: String = text.split("```").step_by(2).collect();
    prose.split('`').skip(1).step_by(2).map(|name| name.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

/// The text between a heading and the next of its kind.
fn section<'a>(readme: &'a str, heading: &str) -> &'a str {
    let begin = readme.find(heading).unwrap_or_else(|| panic!("no section {heading:?}"));
    let rest = &readme[begin + heading.len()..];
    rest.find("\n## ").map_or(rest, |end| &rest[..end])
}

/// The promises of [`HELD`], each with its tests as (file, test).
fn held() -> Vec<(&'static str, Vec<(&'static str, &'static str)>)> {
    let mut promises: Vec<(&str, Vec<(&str, &str)>)> = Vec::new();
    let mut file = "";
    for line in HELD.lines().filter(|line| !line.is_empty()) {
        if !line.starts_with(' ') {
            promises.push((line, Vec::new()));
            continue;
        }
        let line = line.trim();
        let tests = line.split_once(": ").map_or(line, |(name, tests)| {
            file = name;
            tests
        });
        let tests = tests.split(',').map(str::trim).filter(|test| !test.is_empty());
        promises.last_mut().unwrap().1.extend(tests.map(|test| (file, test)));
    }
    promises
}

/// A command or an option is copied as a whole: `resyncfs help` shows the lines of the texts as they are. Only messages go over
/// the end of a line.
#[test]
fn a_command_stands_in_one_line() {
    let mut broken = Vec::new();
    for (name, text) in texts().into_iter().filter(|(name, _)| !name.ends_with("errors.md")) {
        let prose: String = text.split("```").step_by(2).collect();
        let spans = prose.split('`').skip(1).step_by(2);
        broken.extend(spans.filter(|it| it.contains('\n') && !it.contains('…')).map(|it| format!("{name}: {it}")));
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn each_promise_has_tests() {
    let readme = file("README.md");
    let promises: Vec<_> =
        section(&readme, "## What you can rely on").lines().filter_map(|line| line.strip_prefix("- **")).collect();
    let held = held();

    assert_eq!(promises.len(), 5);
    for promise in promises {
        let name = promise.split(".**").next().unwrap();
        let tests = held.iter().find(|(held, _)| *held == name).map(|(_, tests)| tests.len());
        assert!(tests.is_some_and(|tests| tests > 3), "no tests hold: {name}");
        assert!(file("scripts/manual/promises.md").contains(&format!("# {name}\n")), "not explained: {name}");
    }
}

#[test]
fn each_test_that_is_named_exists() {
    let held = held();
    let tests = held.iter().flat_map(|(_, tests)| tests);

    assert!(tests.clone().count() > 100);
    for (path, test) in tests {
        assert!(file(path).contains(&format!("fn {test}()")), "{path} has no test {test:?}");
    }
}

/// Options, and arguments of mount(8), that a mount knows.
fn options() -> BTreeSet<String> {
    let program = cli::command();
    let arguments = program.find_subcommand("mount").unwrap().get_arguments();
    let names = arguments.flat_map(|it| it.get_long_and_visible_aliases().unwrap_or_default());
    names.flat_map(|name| [name.to_owned(), name.replace('-', "_")]).collect()
}

#[test]
fn each_option_that_is_named_is_one_of_the_program() {
    let known = options();
    let mut named = BTreeSet::new();

    for (path, text) in texts() {
        for code in quoted(&text) {
            let list = code.strip_prefix("-o ").unwrap_or(&code);
            for option in list.split(',') {
                let Some((name, _)) = option.split_once('=') else { continue };
                let is_name = name.chars().all(|c| c.is_ascii_lowercase() || c == '-' || c == '_') && !name.is_empty();
                let is_of_another = name.starts_with("x-systemd") || name.starts_with("--");
                if is_name && !is_of_another && !path.contains("exploring") {
                    assert!(known.contains(name), "{path}: `{code}`: there is no option {name}");
                    named.insert(name.to_owned());
                }
            }
        }
    }

    assert!(named.len() > 20, "{named:?}");
}

/// All code of the program; a string that continues in the next line is joined.
fn sources() -> String {
    let (mut all, mut folders) = (String::new(), vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                all.push_str(&fs::read_to_string(path).unwrap());
            }
        }
    }
    let mut joined = String::new();
    for part in all.split("\\\n") {
        joined.push_str(if joined.is_empty() { part } else { part.trim_start() });
    }
    joined
}

/// The messages that the table of README quotes, and those before the colon of an item in the manual.
fn messages() -> Vec<String> {
    let readme = file("README.md");
    let rows = section(&readme, "## When something goes wrong").lines().filter(|line| line.starts_with("| `"));
    let cells: Vec<String> = rows.map(|row| row.split(" | ").next().unwrap_or_default().to_owned()).collect();
    assert!(cells.len() >= 10, "{cells:?}");

    let errors = file("scripts/manual/errors.md");
    let items = errors.split("\n\n").flat_map(|part| part.split("\n- ").flat_map(|item| item.strip_prefix('`')));
    let items: Vec<String> = items
        .map(|item| {
            let item = item.split_whitespace().collect::<Vec<_>>().join(" ");
            format!("`{}`", item.split("`: ").next().unwrap_or_default())
        })
        .collect();
    assert!(items.len() > 30, "{items:?}");
    cells.iter().chain(&items).flat_map(|text| quoted(text)).collect()
}

#[test]
fn each_quoted_message_is_one_of_the_program() {
    let sources = sources();

    for message in messages() {
        for part in message.split('…').map(|part| part.trim_matches([' ', ':'])).filter(|part| part.len() > 1) {
            // A number that the program fills in.
            let part = part.strip_prefix("answered").map_or(part, |_| "answered");
            assert!(sources.contains(part), "the program never says {part:?} (of `{message}`)");
        }
    }
}

#[test]
fn each_option_that_a_message_names_is_one_of_the_program() {
    let (sources, known) = (sources(), options());
    let names = sources.split("-o ").skip(1).filter_map(|rest| rest.split_once('=')).filter(|(name, value)| {
        name.chars().all(|c| c.is_ascii_lowercase() || c == '-' || c == '_')
            && value.starts_with(|c: char| c.is_ascii_uppercase() || c == '{')
    });

    assert!(names.clone().count() > 3);
    for (name, _) in names {
        assert!(known.contains(name), "a message names -o {name}=, which is no option");
    }
}

/// What a program prints on standard output.
fn printed(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn each_metric_is_explained() {
    let source = Source::start();
    source.put("a", Resource::new("Sir, the beacon stands.\n"));
    let mounted = Mounted::new(&source.list_url(), "poll=1h");
    fs::read(mounted.join("a")).unwrap();
    let folder = mounted.path();
    let attribute = ["--absolute-names", "--only-values", "-n", "user.resyncfs.control", folder.to_str().unwrap()];
    let socket = printed("getfattr", &attribute);

    let metrics = printed("curl", &["-sS", "--unix-socket", &socket, "http://localhost/metrics"]);

    let named = quoted(&file("scripts/manual/metrics.md"));
    let bare = |name: &str| name.trim_end_matches("_total").to_owned();
    let explained: BTreeSet<String> = named.iter().map(|name| bare(name)).collect();
    let families = metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    assert!(families.clone().count() > 20, "{metrics}");
    for family in families {
        assert!(explained.contains(&bare(family)), "scripts/manual/metrics.md does not explain {family}");
    }
}

#[test]
fn each_command_that_is_named_is_one_of_the_program() {
    let program = cli::command();

    for (path, text) in texts() {
        let lines = quoted(&text).into_iter().filter(|code| code.starts_with("resyncfs ")).collect::<Vec<_>>();
        for line in lines {
            let words: Vec<_> = line.split_whitespace().skip(1).collect();
            let Some((name, words)) = words.split_first() else { continue };
            let command =
                program.find_subcommand(name).unwrap_or_else(|| panic!("{path}: `{line}`: no command {name}"));
            for word in words {
                if *name == "help" {
                    let is_topic = *word == "TOPIC" || TOPICS.iter().any(|topic| topic.name == *word);
                    assert!(is_topic, "{path}: `{line}`: no topic {word}");
                }
                let Some(flag) = word.trim_matches(['[', ']', ',']).strip_prefix("--") else { continue };
                let flag = flag.split('=').next().unwrap_or_default();
                let known =
                    |command: &clap::Command| command.get_arguments().any(|known| known.get_long() == Some(flag));
                let is_below = command.get_subcommands().any(known);
                assert!(flag == "help" || known(command) || is_below, "{path}: `{line}`: no flag --{flag}");
            }
        }
    }
}

#[test]
fn readme_is_short_and_its_sentences_are() {
    let readme = file("README.md");
    let prose: String = readme.split("```").step_by(2).collect();
    let prose: Vec<&str> =
        prose.lines().filter(|line| !line.starts_with(['|', '#']) && !line.starts_with("    ")).collect();
    let words: Vec<&str> = prose.iter().flat_map(|line| line.split_whitespace()).collect();
    let is_end = |word: &&&str| word.trim_end_matches(['*', '`', ')']).ends_with(['.', '?', '!', ':']);
    let (sentences, words) = (words.iter().filter(is_end).count(), words.len());

    assert!(readme.lines().count() <= 230, "{} lines", readme.lines().count());
    assert!(readme.len() <= 12_000, "{} bytes", readme.len());
    assert!(words < 20 * sentences, "{words} words in {sentences} sentences");
}

#[test]
fn each_file_that_the_tour_of_the_code_names_exists() {
    let tour = file("src/lib.rs");
    let named: BTreeSet<_> =
        quoted(&tour).into_iter().filter(|name| name.ends_with(".rs") || name.ends_with('/')).collect();

    assert!(named.len() > 20, "{named:?}");
    for name in named {
        let project = Path::new(env!("CARGO_MANIFEST_DIR"));
        let is_there = project.join("src").join(&name).exists() || project.join(&name).exists();
        assert!(is_there, "src/lib.rs names {name}, which is missing");
    }
}
