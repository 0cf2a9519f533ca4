// Kubernetes' server of custom resources with the webhook of JobSet in it. It is a plugin of the server's admission, for
// which webhooks are to be called stands in the core API, which this server does not have. Everybody may do everything.
package main

import (
	"context"
	"io"
	"os"

	"github.com/spf13/pflag"
	"k8s.io/apiextensions-apiserver/pkg/cmd/server"
	"k8s.io/apiextensions-apiserver/pkg/cmd/server/options"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apiserver/pkg/admission"
	apiserver "k8s.io/apiserver/pkg/server"
	"kube/crdserver/webhooks"
)

type webhook struct{ *admission.Handler }

// Admit is what JobSet changes in an object before it is checked.
func (webhook) Admit(_ context.Context, asked admission.Attributes, _ admission.ObjectInterfaces) error {
	made := jobSet(asked.GetObject(), asked)
	if made == nil || asked.GetOperation() != admission.Create {
		return nil
	}
	changed, err := webhooks.Default(made.Object)
	if err == nil {
		made.Object = changed
	}
	return err
}

// Validate is what JobSet refuses.
func (webhook) Validate(_ context.Context, asked admission.Attributes, _ admission.ObjectInterfaces) error {
	made := jobSet(asked.GetObject(), asked)
	if made == nil {
		return nil
	}
	var old map[string]any
	if before := jobSet(asked.GetOldObject(), asked); before != nil {
		old = before.Object
	}
	return webhooks.Validate(made.Object, old)
}

func jobSet(told any, asked admission.Attributes) *unstructured.Unstructured {
	found, _ := told.(*unstructured.Unstructured)
	if asked.GetKind().Kind != "JobSet" || asked.GetSubresource() != "" {
		return nil
	}
	return found
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	ctx := apiserver.SetupSignalContext()
	told := options.NewCustomResourceDefinitionsServerOptions(os.Stdout, os.Stderr)
	recommended := told.RecommendedOptions
	recommended.Authentication, recommended.Authorization = nil, nil
	recommended.Features.EnablePriorityAndFairness = false
	recommended.Admission.Plugins = admission.NewPlugins()
	recommended.Admission.Plugins.Register("JobSet", func(io.Reader) (admission.Interface, error) {
		return webhook{admission.NewHandler(admission.Create, admission.Update)}, nil
	})
	recommended.Admission.RecommendedPluginOrder = []string{"JobSet"}
	recommended.Admission.DefaultOffPlugins = nil
	flags := pflag.NewFlagSet(os.Args[0], pflag.ExitOnError)
	told.AddFlags(flags)
	check(flags.Parse(os.Args[1:]))
	check(told.ServerRunOptions.ComponentGlobalsRegistry.Set())
	check(told.Complete())
	check(told.Validate())
	check(server.Run(ctx, told))
}
