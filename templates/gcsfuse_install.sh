# Installs gcsfuse $1 from Google's package repository, or from the one at $2, as root. Waits for the package tool of a
# host that has just booted; a lock is never removed.
set -eu
. /etc/os-release
repository=${2:-https://packages.cloud.google.com/apt}
list=/etc/apt/sources.list.d/tpuctl-gcsfuse.list
key=/usr/share/keyrings/cloud.google.asc
[ -s "$key" ] || { curl -fsSL --retry 5 "$repository/doc/apt-key.gpg" -o "$key.tmp"; mv "$key.tmp" "$key"; }
echo "deb [signed-by=$key] $repository gcsfuse-$VERSION_CODENAME main" > "$list.tmp"
mv "$list.tmp" "$list"
export DEBIAN_FRONTEND=noninteractive LC_ALL=C
# DPkg::Lock::Timeout is for installing: `apt-get update` fails at once where another one is at work (apt 2.6).
until=$(($(date +%s) + 900))
while ! said=$(apt-get -q -o Dir::Etc::sourcelist="$list" -o Dir::Etc::sourceparts=- update 2>&1); do
  case $said in
    *"Could not get lock"*) [ "$(date +%s)" -lt "$until" ] && sleep 5 && continue ;;
  esac
  echo "$said" >&2
  exit 1
done
apt-get -q -y -o DPkg::Lock::Timeout=900 --allow-downgrades install "gcsfuse=$1"
gcsfuse --version
