"""Which test holds which numbered invariant of the field (T1 to T52), and that each is there.

The numbers are those of the fact sheet on attacks and defenses that the library was written from:
T1 to T21 and T48 to T52 are about attacks, T22 to T38 about defenses, T39 to T44 about figures,
T45 to T47 about encryption. Where one line names several tests, each holds a part.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

HELD: dict[str, tuple[str, str]] = {
    "T1": ("direct is exact for 2, 5, 10, 100 classes; rows sum to 0; permutation, factor",
           "attacks/test_direct:test_it_is_exact_on_any_number_of_classes "
           "attacks/test_direct:test_permuted_classes_permute_the_answer_and_a_factor_changes_nothing"),
    "T2": ("direct on a saturated row",
           "attacks/test_direct:test_a_saturated_row_is_still_read_and_an_empty_one_is_declined"),
    "T3": ("direct through an unknown and a known top",
           "attacks/test_direct:test_through_an_unknown_linear_top_it_is_at_chance"),
    "T4": ("norm on constructed gradients, 1.0, and its orientation",
           "attacks/test_norm:test_constructed_gradients_are_ranked_without_error "
           "attacks/test_norm:test_the_rare_class_is_known_from_the_prior_not_from_the_truth"),
    "T5": ("norm on balanced classes, 0.5 within 0.02, 20,000 rows",
           "attacks/test_norm:test_it_depends_on_balance"),
    "T6": ("cosine is +1 and -1",
           "attacks/test_direction:test_collinear_gradients_have_cosine_one"),
    "T7": ("reference rows are excluded",
           "attacks/test_direction:test_reference_rows_are_not_in_the_answer"),
    "T8": ("spectral on rank 1, either sign",
           "attacks/test_spectral:test_a_rank_one_table_is_read_without_error"),
    "T9": ("completion of z = e_y",
           "attacks/test_model_completion:test_an_embedding_that_is_the_label_is_read_without_error"),
    "T10": ("the bottom is bit-identical",
            "attacks/test_model_completion:test_the_bottom_is_left_as_it_was"),
    "T11": ("the pieces of MixMatch",
            "attacks/test_mixmatch:test_sharpening "
            "attacks/test_mixmatch:"
            "test_mixing_weights_favour_the_row_itself_and_mixed_shares_add_up "
            "attacks/test_mixmatch:test_without_averaging_the_last_weights_answer "
            "attacks/test_mixmatch:"
            "test_equal_shares_cost_nothing_and_labelled_rows_cost_cross_entropy"),
    "T12": ("z independent of y stays at chance", "attacks/test_model_completion:"
            "test_an_embedding_unrelated_to_the_label_stays_at_chance attacks/test_mixmatch:"
            "test_an_embedding_unrelated_to_the_label_stays_at_chance"),
    "T13": ("1, 2, 1.5, 1.6667, 1.6, 1.625",
            "attacks/test_active_completion:test_a_constant_gradient_gives_the_known_sequence"),
    "T14": ("a change of sign",
            "attacks/test_active_completion:test_a_change_of_sign_is_an_honest_step"),
    "T15": ("gamma 0 is the honest run", "attacks/test_active_completion:"
            "test_gamma_zero_is_an_honest_run_bit_for_bit"),
    "T16": ("1 <= r <= 5",
            "attacks/test_active_completion:test_factors_stay_within_their_limits"),
    "T17": ("closed form while the batch fits", "attacks/test_batch_inference:"
            "test_closed_form_is_exact_while_the_batch_fits_the_width"),
    "T18": ("no misfit at the truth",
            "attacks/test_batch_inference:test_the_truth_leaves_no_misfit"),
    "T19": ("the bias gradient is the mean of p - y",
            "attacks/test_batch_inference:test_the_bias_gradient_counts_classes"),
    "T20": ("ExPLoit's terms at the truth", "attacks/test_exploit:"
            "test_at_the_true_top_and_labels_nothing_is_left_to_replay"),
    "T21": ("the entropy of an even prior is log K",
            "attacks/test_exploit:test_the_entropy_of_even_shares_is_log_of_classes"),
    "T22": ("scale of iso", "defenses/test_iso:"
            "test_scale_is_strength_times_largest_norm_over_root_width"),
    "T23": ("equivariance of iso", "defenses/test_iso:test_noise_scales_with_the_message "
            "defenses/test_iso:test_permuting_rows_permutes_what_they_become_without_their_noise"),
    "T24": ("strength 0 and the generator",
            "defenses/test_iso:test_strength_zero_is_the_identity_and_draws_nothing"),
    "T25": ("second moment of max_norm", "defenses/test_gradient_defenses:"
            "test_max_norm_gives_all_rows_the_same_expected_length"),
    "T26": ("direction under max_norm",
            "defenses/test_gradient_defenses:test_max_norm_keeps_every_row_on_its_line"),
    "T27": ("Marvell's vectors", "defenses/test_marvell:test_vectors"),
    "T28": ("sumKL falls with power", "defenses/test_marvell:test_more_power_never_hurts"),
    "T29": ("a batch of one class", "defenses/test_marvell:"
            "test_a_batch_of_one_class_gets_isotropic_noise_of_the_same_strength"),
    "T29b": ("CoAE: exact decoder; direct under argmin and argmax", "defenses/test_label_defenses:"
             "test_coae_codes_are_decodable_and_never_the_class_itself "
             "defenses/test_label_defenses:test_coae_swaps_two_classes_so_argmax_reads_what_argmin_read"),
    "T30": ("count of compression",
            "defenses/test_gradient_defenses:test_compression_keeps_exactly_the_largest"),
    "T31": ("levels of discrete gradients", "defenses/test_gradient_defenses:"
            "test_discrete_levels_error_symmetry_and_repetition"),
    "T32": ("PPDL's scales",
            "defenses/test_gradient_defenses:test_ppdl_scales_of_the_published_setting"),
    "T33": ("dCor", "defenses/test_representation_defenses:"
            "test_dcor_of_itself_rotated_scaled_and_of_labels_is_one "
            "defenses/test_representation_defenses:"
            "test_dcor_gradient_is_finite_with_duplicates_and_constants"),
    "T34": ("frequencies of randomised response", "defenses/test_label_dp:test_frequencies"),
    "T35": ("one release for each label", "defenses/test_label_dp:"
            "test_memoised_and_validation_labels_are_randomised_too"),
    "T36": ("RRWithPrior, the whole matrix", "defenses/test_label_defenses:"
            "test_uniform_prior_gives_randomised_response defenses/test_label_defenses:"
            "test_no_ratio_of_the_enumerated_matrix_exceeds_epsilon"),
    "T37": ("GradPerturb is unbiased", "defenses/test_label_defenses:"
            "test_gradperturb_is_unbiased_and_has_laplace_noise"),
    "T38": ("ALIBI's posterior",
            "defenses/test_label_defenses:test_alibi_posterior_is_bayes_rule"),
    "T39": ("Clopper and Pearson", "audit/test_intervals:"
            "test_clopper_pearson_half_width_at_one_half audit/test_intervals:"
            "test_zero_events_upper_limit"),
    "T40": ("one-run canaries", "epsilon/test_canary:test_one_run_vectors"),
    "T41": ("tanh(epsilon/2), which is twice the chance to keep a label less 1",
            "defenses/test_label_dp:test_keep_probability "
            "defenses/test_label_dp:test_guarantee_states_release_and_limit"),
    "T42": ("CAP", "audit/test_cap:test_cap_reproduces_table_xii"),
    "T43": ("DCS", "audit/test_cap:test_dcs_vectors"),
    "T44": ("Hanley and McNeil", "audit/test_intervals:test_hanley_mcneil_vectors"),
    "T45": ("round trip of CKKS", "he/test_ckks:test_round_trip_error"),
    "T46": ("no decryption without the key",
            "he/test_ckks:test_the_public_context_cannot_decrypt"),
    "T47": ("the budget of bits", "he/test_ckks:test_parameters_beyond_the_table_are_refused"),
    "T48": ("equation solving is exact", "attacks/test_equation_solving:"
            "test_it_is_exact_with_as_many_equations_as_columns"),
    "T49": ("its smallest solution", "attacks/test_equation_solving:"
            "test_too_few_equations_give_the_smallest_solution"),
    "T50": ("labels of target rows are read by no attack (every registered one, in the suite)",
            "conformance/test_registries:test_attack "
            "attacks/test_direction:test_known_rows_beyond_the_reference_change_nothing"),
    "T51": ("permuting the truth changes the figure only (every registered one, in the suite)",
            "conformance/test_registries:test_attack"),
    "T52": ("nothing is found where labels are shuffled",
            "test_claims:test_nothing_is_found_where_nothing_leaks "
            "conformance/test_registries:test_attack"),
}  # fmt: skip
TESTS = Path(__file__).parent.parent


def test_no_number_is_left_out() -> None:
    assert set(HELD) == {f"T{k}" for k in range(1, 53)} | {"T29b"}


@pytest.mark.parametrize("number", HELD)
def test_the_test_that_holds_it_is_there(number: str) -> None:
    for name in HELD[number][1].split():
        file, test = name.split(":")
        tree = ast.parse((TESTS / f"{file}.py").read_text(encoding="utf-8"))
        found = {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}
        assert test in found, f"{number}: {file}.py has no {test}"
