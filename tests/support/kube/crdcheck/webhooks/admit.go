// Package webhooks is JobSet's file jobset_webhook.go, which build.py puts beside this one, and a way to call it.
package webhooks

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
)

// Default is the webhook that changes a JobSet before it is checked.
func Default(told map[string]any) (map[string]any, error) {
	made, err := typed(told)
	if err != nil {
		return nil, err
	}
	if err := (&jobSetWebhook{}).Default(context.Background(), made); err != nil {
		return nil, err
	}
	return runtime.DefaultUnstructuredConverter.ToUnstructured(made)
}

// Validate is the webhook that refuses, a creation where there is no old one. It asks a cluster only about claims that
// a JobSet makes itself, which runs do not have.
func Validate(told, old map[string]any) error {
	made, err := typed(told)
	if err != nil {
		return err
	}
	if old == nil {
		_, err = (&jobSetWebhook{}).ValidateCreate(context.Background(), made)
		return err
	}
	before, err := typed(old)
	if err != nil {
		return err
	}
	_, err = (&jobSetWebhook{}).ValidateUpdate(context.Background(), before, made)
	return err
}

func typed(told map[string]any) (*jobset.JobSet, error) {
	var made jobset.JobSet
	return &made, runtime.DefaultUnstructuredConverter.FromUnstructured(told, &made)
}
