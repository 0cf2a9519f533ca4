// Kubernetes' own control plane as one program: its first argument says which part of it to be. One program instead
// of three has their common packages once, so it is linked once and takes a third of the disk.
package main

import (
	"os"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	manager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

func main() {
	parts := map[string]func() *cobra.Command{
		"kube-apiserver":          apiserver.NewAPIServerCommand,
		"kube-controller-manager": manager.NewControllerManagerCommand,
		"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	}
	if len(os.Args) < 2 || parts[os.Args[1]] == nil {
		os.Stderr.WriteString("usage: kubebox kube-apiserver|kube-controller-manager|kube-scheduler FLAGS\n")
		os.Exit(2)
	}
	part := parts[os.Args[1]]()
	os.Args = os.Args[1:]
	os.Exit(cli.Run(part))
}
