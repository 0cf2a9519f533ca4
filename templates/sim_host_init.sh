#!/bin/sh
# Makes the namespaces it was started in (network, mount, PID, UTS, IPC) one host of the simulator and ends as its
# first process, a real sshd: DIRECTORY HOSTNAME ADDRESS/PREFIX EXTERNAL GATEWAY WHEELS [READABLE...]
set -eu
dir=$1 name=$2 address=$3 external=$4 gateway=$5 wheels=$6
shift 6
root=$dir/merged

# The cable is plugged in from outside; without it nothing below can be reached anyway.
tries=0
while [ ! -e "$dir/plugged" ]; do
	tries=$((tries + 1))
	[ "$tries" -lt 3000 ] || { echo "no cable was plugged in" >&2; exit 1; }
	sleep 0.01
done
ip -batch - <<END
address add $address dev eth0
link set eth0 up
link set lo up
address add 169.254.169.254/32 dev lo
address add $external/32 dev lo
route add default via $gateway
END

mount --make-rprivate /
mount -t overlay overlay -o "lowerdir=/,upperdir=$dir/upper,workdir=$dir/work" "$root"
# Every host knows Python by both names; the Python of a distribution may have one of them.
[ -e "$root/usr/bin/python" ] || ln -s python3 "$root/usr/bin/python"
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t tmpfs -o mode=755 dev "$root/dev"
node() { mknod -m "$2" "$root/dev/$1" "$3" "$4" "$5"; }
node null 666 c 1 3
node zero 666 c 1 5
node full 666 c 1 7
node random 666 c 1 8
node urandom 666 c 1 9
node tty 666 c 5 0
node fuse 666 c 10 229
node loop-control 660 c 10 237
cp -a "$LOOPS"/loop* "$root/dev/"
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts "$root/dev/pts"
mount -t tmpfs -o mode=1777 shm "$root/dev/shm"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
ln -s /proc/self/fd/0 "$root/dev/stdin"
ln -s /proc/self/fd/1 "$root/dev/stdout"
ln -s /proc/self/fd/2 "$root/dev/stderr"
mount -t tmpfs -o mode=755 run "$root/run"
mkdir -p "$root/run/sshd" "$root/run/lock"
for each in home tmp mnt root; do
	mkdir -p "$dir/own/$each"
	mount --bind "$dir/own/$each" "$root/$each"
done
chmod 1777 "$dir/own/tmp"
chmod 711 "$dir/own/root"
# The way to what hosts share may be open to root alone, on the machine. Here it is the host's own view of it.
open_way() {
	way=${1%/*}
	set --
	while [ -n "$way" ]; do
		set -- "$@" "$root$way"
		way=${way%/*}
	done
	[ "$#" -eq 0 ] || find "$@" -maxdepth 0 ! -perm -o+x -exec chmod o+x {} +
}
mkdir -p "$root$wheels"
open_way "$wheels"
mount --bind "$wheels" "$root$wheels"
# What is the machine's own, such as its Python: root of a host must not change that for everybody.
for each in "$@"; do
	mkdir -p "$root$each"
	open_way "$each" || true # below something that is read-only already
	mount --bind "$each" "$root$each"
	mount -o remount,bind,ro "$root$each"
done
mount --bind "$dir/boot_id" "$root/proc/sys/kernel/random/boot_id"
# Its root sets its own, as after a boot, and not the machine's.
hugepages=$root/sys/kernel/mm/transparent_hugepage/enabled
if [ -e "$hugepages" ]; then
	echo 'always [madvise] never' >"$dir/hugepages"
	mount --bind "$dir/hugepages" "$hugepages"
fi
hostname "$name"
cp "$dir/hosts" "$root/etc/hosts"
echo "$name" >"$root/etc/hostname"
mkdir -p "$root/etc/sudoers.d"
echo '%google-sudoers ALL=(ALL:ALL) NOPASSWD:ALL' >"$root/etc/sudoers.d/google_sudoers"
chmod 440 "$root/etc/sudoers.d/google_sudoers"
grep -q '^google-sudoers:' "$root/etc/group" || echo 'google-sudoers:x:1999:' >>"$root/etc/group"
mkdir -p "$dir/keys"
mkdir "$root/run/tpuctl-sim"
mount --bind "$dir/keys" "$root/run/tpuctl-sim"

cd "$root"
mkdir -p .old
pivot_root . .old
exec chroot . /bin/sh -c 'umount -l /.old; exec "$0" -D -e -f /run/tpuctl-sim/sshd_config' "$SSHD"
