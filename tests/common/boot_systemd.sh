#!/bin/bash
# Makes the new namespaces that it runs in a machine of its own, and becomes systemd as their first process:
#   boot_systemd.sh PROGRAM TARGET
# The root is an overlay of this machine's, whose upper layer is memory. Kernel settings and devices of this machine are
# read-only or absent, the network is shared. Nothing is left once the namespaces are gone.
set -eu
program=$1 target=$2 space=/mnt root=/mnt/root
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs $space
mkdir $space/{upper,work,root}
mount -t overlay -o lowerdir=/,upperdir=$space/upper,workdir=$space/work overlay $root

mount -t proc proc $root/proc
mount --bind $root/proc/sys $root/proc/sys
mount -o remount,bind,ro $root/proc/sys
mount -t sysfs -o ro sysfs $root/sys
mount -t tmpfs -o mode=755 tmpfs $root/sys/fs/cgroup
mount -t cgroup2 cgroup2 $root/sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs $root/dev
for device in null zero full random urandom tty autofs; do
  : > $root/dev/$device
  mount --bind /dev/$device $root/dev/$device
done
# As udev makes it: all users may open it.
mknod -m 666 $root/dev/fuse c 10 229
mkdir $root/dev/{pts,shm}
mount -t devpts -o newinstance,ptmxmode=0666 devpts $root/dev/pts
ln -s pts/ptmx $root/dev/ptmx
ln -s /proc/self/fd $root/dev/fd
for folder in run tmp mnt var/log/journal var/cache; do
  mkdir -p $root/$folder
  mount -t tmpfs -o mode=755 tmpfs $root/$folder
done
chmod 1777 $root/tmp

# The program as the package installs it.
: > $root/usr/bin/resyncfs
mount --bind "$program" $root/usr/bin/resyncfs
for name in mount.resyncfs mount.fuse.resyncfs; do
  ln -sf ../bin/resyncfs $root/usr/sbin/$name
done

# Of what a machine starts, nothing but the journal.
for wants in $root/usr/lib/systemd/system/{sysinit,sockets,local-fs,timers,multi-user}.target.wants \
  $root/etc/systemd/system/*.wants; do
  for unit in "$wants"/*; do
    case $unit in */systemd-journald.s* | */systemd-journald-dev-log.socket) ;; *) rm -f "$unit" ;; esac
  done
done
: > $root/etc/fstab
mkdir -p $root/run/systemd/system
for unit in systemd-journald-audit.socket systemd-remount-fs.service; do
  ln -s /dev/null $root/run/systemd/system/$unit
done
printf '[Unit]\nRequires=basic.target\nAfter=basic.target\n' > $root/run/systemd/system/$target

cd $root
mkdir -p old
pivot_root . old
umount -l /old
# As on every machine that systemd has booted: without it credentials are mounted where nobody sees them.
mount --make-rshared /
exec env -i container=resyncfs-test PATH=/usr/sbin:/usr/bin:/sbin:/bin \
  /lib/systemd/systemd --system --unit=$target --show-status=no --log-target=journal
