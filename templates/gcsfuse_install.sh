# Puts gcsfuse $1 of Google's package repository, or of the one at $2, below /opt/tpuctl-gcsfuse, as root. What the host
# has of gcsfuse itself, of whatever version, stays as it is; so do the lists, locks and keys of its package tool.
set -eu
. /etc/os-release
repository=${2:-https://packages.cloud.google.com/apt}
folder=/opt/tpuctl-gcsfuse/$1
program=$folder/usr/bin/gcsfuse
[ ! -x "$program" ] || exec "$program" --version
work=$folder.tmp
rm -rf "$work"
mkdir -p "$work/lists/partial" "$work/archives/partial" "$work/program"
cd "$work"
# Each time: Google's keys change, and the one that came with the image may have expired.
curl -fsSL --retry 5 "$repository/doc/apt-key.gpg" -o key.asc
echo "deb [signed-by=$work/key.asc] $repository gcsfuse-$VERSION_CODENAME main" > sources.list
export LC_ALL=C
own="-o Dir::Etc::sourcelist=$work/sources.list -o Dir::Etc::sourceparts=- -o Dir::State::lists=$work/lists -o Dir::Cache=$work"
apt-get -q $own update
apt-get -q $own download "gcsfuse=$1"
dpkg-deb -x gcsfuse_*.deb program
mv program "$folder"
cd /
rm -rf "$work"
exec "$program" --version
