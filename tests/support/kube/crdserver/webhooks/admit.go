// Package webhooks is JobSet's file jobset_webhook.go, which build.py puts beside this one, and a way to call it.
package webhooks

import (
	"context"
	"encoding/json"

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
	changed, err := runtime.DefaultUnstructuredConverter.ToUnstructured(made)
	if err != nil {
		return nil, err
	}
	return kept(told, changed).(map[string]any), nil
}

// kept is the new value with what only its way through Go's types has dropped, such as zeros, as controller-runtime
// keeps that.
func kept(old, changed any) any {
	switch before := old.(type) {
	case map[string]any:
		if after, ok := changed.(map[string]any); ok {
			for key, value := range before {
				if now, ok := after[key]; ok {
					value = kept(value, now)
				}
				after[key] = value
			}
		}
	case []any:
		if after, ok := changed.([]any); ok && len(after) == len(before) {
			for i := range before {
				after[i] = kept(before[i], after[i])
			}
		}
	}
	return changed
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
	sent, err := json.Marshal(told)
	if err != nil {
		return nil, err
	}
	var made jobset.JobSet
	return &made, json.Unmarshal(sent, &made)
}
