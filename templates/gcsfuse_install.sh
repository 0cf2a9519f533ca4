# Installs gcsfuse $1 from Google's package repository, as root. Waits for the package tool of a host that has just
# booted; a lock is never removed.
set -eu
. /etc/os-release
list=/etc/apt/sources.list.d/tpuctl-gcsfuse.list
key=/usr/share/keyrings/cloud.google.asc
[ -s "$key" ] || { curl -fsSL --retry 5 https://packages.cloud.google.com/apt/doc/apt-key.gpg -o "$key.tmp"; mv "$key.tmp" "$key"; }
echo "deb [signed-by=$key] https://packages.cloud.google.com/apt gcsfuse-$VERSION_CODENAME main" > "$list.tmp"
mv "$list.tmp" "$list"
export DEBIAN_FRONTEND=noninteractive
apt-get -q -o DPkg::Lock::Timeout=900 -o Dir::Etc::sourcelist="$list" -o Dir::Etc::sourceparts=- update
apt-get -q -y -o DPkg::Lock::Timeout=900 --allow-downgrades install "gcsfuse=$1"
gcsfuse --version
