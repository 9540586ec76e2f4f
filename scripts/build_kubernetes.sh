#!/bin/bash
# Build kube-apiserver, kube-controller-manager, kube-scheduler and kubelet from Debian's source package, for
# `make test-kubernetes`. build_kubernetes.sh FOLDER: the binaries go to FOLDER/bin; about 12 minutes, once.
# Needs root: the other programs of a cluster, and the compiler, are installed from Debian's packages.
set -euo pipefail
folder=$(realpath -m "$1")
programs=(kube-apiserver kube-controller-manager kube-scheduler kubelet)

missing() {
    local program
    for program in "${programs[@]}"; do
        [ -x "$folder/bin/$program" ] || return 0
    done
    return 1
}

has_programs() {
    command -v etcd containerd runc ip openssl nsenter podman debootstrap curl | wc -l | grep -qx 9 &&
        [ -x /usr/lib/cni/bridge ]
}
has_programs || {
    apt-get update -qq
    apt-get install --yes -qq --no-install-recommends etcd-server containerd runc iproute2 openssl util-linux podman \
        debootstrap curl containernetworking-plugins
} >&2

missing || exit 0
mkdir -p "$folder/bin" "$folder/source" "$folder/lists/partial"
cd "$folder/source"
apt-get install --yes -qq --no-install-recommends golang-1.19-go golang-github-modern-go-reflect2-dev \
    build-essential dpkg-dev rsync ca-certificates >&2

# Sources by lists of our own: those of the machine stay as they are.
printf 'deb-src http://deb.debian.org/debian bookworm main\n' >"$folder/sources.list"
apt=(apt-get -qq -o "Dir::Etc::sourcelist=$folder/sources.list" -o Dir::Etc::sourceparts=- -o "Dir::State::lists=$folder/lists")
"${apt[@]}" update >&2
compgen -G 'kubernetes-*/' >/dev/null || "${apt[@]}" source kubernetes >&2

cd kubernetes-*/
# The reflect2 of this source predates Go 1.18, whose maps it walks wrongly: the API server would end by a fault.
rm -f vendor/github.com/modern-go/reflect2/*.go vendor/github.com/modern-go/reflect2/*.s
cp /usr/share/gocode/src/github.com/modern-go/reflect2/*.go /usr/share/gocode/src/github.com/modern-go/reflect2/*.s \
    vendor/github.com/modern-go/reflect2/
rm -f vendor/github.com/modern-go/reflect2/*_test.go
export GOPATH="$PWD/_gopath" GOCACHE="$folder/go-cache" GOPROXY=off GOFLAGS= PATH="/usr/lib/go-1.19/bin:$PATH"
mkdir -p "$GOPATH"
what=$(printf 'cmd/%s ' "${programs[@]}")
make WHAT="${what% }" >&2
for program in "${programs[@]}"; do
    found=$(find _output "$GOPATH" -name "$program" -type f -perm -u+x -print -quit)
    [ -n "$found" ] || { echo "build_kubernetes: $program was not built" >&2; exit 1; }
    install -m 755 "$found" "$folder/bin/$program"
done
rm -rf "$folder/source" "$folder/go-cache"
